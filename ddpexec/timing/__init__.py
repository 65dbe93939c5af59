"""Moments of a run: clocks of host and device, stamps, and the records made of them."""
