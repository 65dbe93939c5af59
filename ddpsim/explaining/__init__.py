"""Explains the traces of a training run: where its step goes, which rank is late and why, and what would change it.

A `TracedRank` is one rank's trace as iterations, whoever wrote it: `torch.profiler`, `ddpexec` or the simulator. The
ranks are brought on one clock (`clocks`); verdicts are functions of ranks on one clock: the late rank (`late`), the
slow link (`links`), what the step is bound by (`bound`), waiting and wire of each collective (`splits`). One rank's
trace also yields a `PredictionBasis`, with which the traced configuration is predicted and its buckets are advised on
(`predicted`). An `Explanation` holds all of it; `against` compares two. `tuned` reads the page that a tuner left.

Start with `explain.py`, which calls all of these in order.

Public modules: against, explain, explanation, files, machine, predicted, ranks, run_facts, splits, tuned.
"""
