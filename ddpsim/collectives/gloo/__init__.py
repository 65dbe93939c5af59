"""Gloo as PyTorch uses it: a ring over TCP."""
