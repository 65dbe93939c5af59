"""Questions of many jobs: which buckets, which scheme, which machine; and a prediction held against a measured run.

Each question lays out jobs, asks `ddpsim.prediction.answers` for their predictions, and chooses among those. Its nouns:
a row (`PlanRow`, `ComparisonRow`, `SchemeRow`) is what one job came to; a candidate is a job that a search may advise;
a gain is the share of the default's step that another choice saves, with its band; a `Trial` is what is worth one trial
run; a `Bound` is the resource that a step waits for most; a break-even is the rate or node count where a choice turns.

Read `planner.py` first (`plan`, 80 lines), then `best_buckets.py`, which makes each of its rows, and `worth.py`, the
one rule by which anything is advised. `compare.py`, `search.py`, `sweep.py` and `by_scheme.py` are the other questions;
`validate.py` and `order_bench.py` stand by themselves.

Public modules: advice, best_buckets, bound, break_even, by_scheme, candidates, codec_break_even, compare, comparison,
comparison_row, goal, order_bench, pipeline, plan_file, planner, prices, ranking, rows, savings, search, search_report,
sweep, validate, worth.
"""
