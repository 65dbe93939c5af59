"""Doubts: what a prediction rests on that nobody measured, and how far off it may be for each.

A `Doubt` (`doubt.py`) is one cause of error, independent of all others: assumptions at its 10th and at its 90th
percentile, and the measurement that would remove it. `causes.py` lists those of a run, and is the file to read first;
`spreads.py` has every number, with its source; `collectives.py` says how far off a collective is; `join.py` adds what
the doubts do to a step up to one band; `constants.py` shows the doubt of single constants to people.
"""
