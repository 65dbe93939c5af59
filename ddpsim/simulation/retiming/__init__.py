"""The period of a run under other constants, many at once, without running it again where that can be.

A band, a sensitivity and a bottleneck each ask what a step takes if one constant were another: some 20 to 60 periods a
prediction. A run has shown in which order each resource takes its nodes; with that kept, ends follow from what nodes
take by additions and maxima, on arrays with a column for each assumption. What overlapping costs depends on those ends
in turn, and is found by repeated passes.

`dependencies` has a run's nodes as operations on such arrays, `prices` what nodes take in each column, `collectives`
what messages cost each other, `intervals` the arithmetic of overlaps. Read `retime.py` first: `periods_s` says which
columns can be had so, and `run_again` has the others.
"""
