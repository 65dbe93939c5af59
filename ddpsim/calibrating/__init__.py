"""Fits: a transport's constants from measured tables."""
