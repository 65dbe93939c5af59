"""What a collective takes: operation, bytes and group in, seconds and loads on links out.

A `Transport` is a library (NCCL or RCCL, gloo, Open MPI) on a placement. It answers with a `Demand` (a latency, bytes
on links, a highest rate), which shares the links of a `Network` with others in flight, or with `Steps`: the same as
single transfers, by which the demand is judged. Its numbers are a `Calibration`: `Constant`s, fitted or priors with a
source. `channels` has the rings that NCCL's search finds in a node, `schedules` says who sends what to whom. Nothing
here knows a user's option, a scheme or a workload.

Read `schedules.py` first, which has a ring's time by hand; then `transport.py`, the seam, and `execute.py`, which makes
transports and runs them.

Public modules: bands, calibration, calibration_file, channels, codec_priors, conditions, constant, copies, curve,
ddp_priors, execute, gloo.transport, mpi.transport, nccl.layout, nccl.loads, nccl.paths_taken, nccl.transport,
nccl.versions, network.fairness, network.fluid, point_to_point, scaled, schedules, servers, transport, trees.
"""
