"""NCCL and RCCL: what they pick for a message, and what that takes.

A `Layout` is a placement as NCCL sees it: channels found in its nodes, and what rings, trees and in-switch reductions
load on links. `tuning` is NCCL's own cost model, `rccl` RCCL's: by them an algorithm and protocol is picked, as a
`TuningEntry` of a table by `Shape`; `versions` has what changed from release to release. `costs` says what the picked
entry takes, which NCCL's model does not predict well, `pieces` how it cuts a message, `steps` its single transfers.
`paths_taken` says by which links bytes go, and what the other choice would give.

Read `transport.py` first.
"""
