"""Data parallel training by any schedule, DDP with any bucket plan among them, with torch's own constructor."""
