"""Doubts: what a prediction rests on that nobody measured, and how far off it may be for each."""
