"""Workloads: one rank's iteration without communication, recorded from a step or counted from its operators."""
