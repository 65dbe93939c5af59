"""Buckets that tune themselves during training: observe steps, predict every cap, try the best plans, keep the fastest.

A tuner works in rounds between steps. `observing` stamps some steps, `predictor` has them ranked in a process of its
own (`ranking`), `decision` runs trial plans in blocks of steps and `racing` compares them; `switching` puts a plan in
force. Rank 0 decides, and the others follow over the `control_channel`, a process group of the tuner's own.

Nouns: a `TrialPlan` is a set of buckets or a scheme's schedule; an `Observed` is what ranks measured of the present
plan; a `RoundDecision` is what a round tried, measured and chose.

Read first: `tuner`.

Public modules: tuned, tuner.
"""
