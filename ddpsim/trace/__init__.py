"""The trace of a run, simulated or real: its records, its numbers, its files."""
