"""Options, each declared once: a dataclass's field with its type and an `Option` (`option`)."""
