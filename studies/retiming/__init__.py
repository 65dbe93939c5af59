"""Retimed ends of bands beside simulated ones."""
