"""The trace of a run, simulated or real: its records, its numbers, its files.

A `Trace` has the `Iteration`s of each rank with their parts in seconds, `BucketTimes` (the life of a bucket's
collective, from ready to written), `Gradient`s (when each hook fired), and `Span`s for a viewer. What repeats in it is
a cycle: one iteration, the micro-batches of a step, or several steps of a scheme. A `Summary` is what a trace says of
the steady state: the period, its breakdown, skew and overlap. Simulator and executor write the same files (`json`), one
Kineto JSON a rank and a `run.json`: what reads them cannot tell which wrote them.

Read first: `records.py`, then `summarise` in `metrics.py`.

Public modules: cycles, json, json.reading, json.schema, json.streaming, metrics, records, tables.
"""
