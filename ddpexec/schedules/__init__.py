"""Schedules carried out over torch.distributed: the messages of any scheme, launched and awaited by one rule."""
