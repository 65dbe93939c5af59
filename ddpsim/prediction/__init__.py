"""Predictions of a step: simulated, summarised, written and read as documents."""
