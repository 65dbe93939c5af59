"""Schedules: what an iteration sends, when, and what waits for it, as data that both packages carry out.

A scheme is a function from `SchemeInputs` (a model's parameters, its buckets, when gradients come) to a `Schedule`.
A schedule is `Message`s in the order of their launch: each becomes possible after some `Point`s of an iteration, and
blocks others. `named` finds a scheme by the name that `--scheme` takes and reads its own options; `sharded`,
`deepspeed`, `fused`, `servers`, `averaging` and so on are families of schemes, a file each. Which rule launches a
schedule's messages, in a simulated rank and in a real one, is `ddpsim.bucketing.LaunchQueue`.

Read `message.py` and `schedule.py` first, then `schemes.py`, which has the plainest schemes. No library is
imported here.

Public modules: averaging, chunks, compression, copied, mesh, message, named, outer, pipeline, points, precision,
schedule, scheme, schemes, servers, setup, sharded, units.
"""
