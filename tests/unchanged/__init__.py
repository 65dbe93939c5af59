"""Whether a change that should move no number moves none: documents of many commands, before and after."""
