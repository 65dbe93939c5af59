"""What a user may ask for, each option declared once: in a dataclass field with its type and an `Option`."""
