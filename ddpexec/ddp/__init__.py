"""Distributed data parallel training over any bucket plan, with the constructor of torch's own class."""
