"""Measurements of allreduces as DDP issues them, and of DDP's own work, from which ddpsim calibrates.

Nouns: a row is one message size with its time over the ranks; a cost is one part of DDP's work on the host (a hook, a
launch, a copy by byte); a stage is a measurement that is written as soon as it is done, so that a stopped command goes
on.

Every time is a median over repetitions, between the last rank's launch and the last rank's end.

Read first: `microbench`, then `ddp_costs`; `under_load` measures how computation and communication slow each other,
`codecs` what compression costs.

Public modules: microbench.
"""
