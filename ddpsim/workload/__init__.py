"""Workloads: one rank's training iteration without communication, recorded, imported or estimated.

A `Workload` has two clocks, the host's and the device's: what each phase takes on both, when each gradient's hook
fires and when the gradient is complete, when forward first needs each parameter, and memory. An `Operator` is one
launch of a step, without any time in it; an `AchievedGpu` is a GPU with the shares of its peaks that kernels reach.
The estimate puts operators on a GPU by a roofline, and an `Anchor`, a measured time, scales it. The import takes a
profiler's trace apart (`kineto`). An `IterationProfile` is what the simulation replays of an iteration.

Read first: `profile.py` (what a workload is), then `estimate.py` or `kineto/workload.py` (where one comes from).

Public modules: anchors, devices, estimate, files, fusing, gpu_options, gpus, iteration_profile, kineto.device_use,
kineto.iterations, kineto.mapping, kineto.replay, kineto.steps, kineto.workload, layer_messages, on_gpu, operators,
optimizers, order_trace, parallel_linears, pool, profile, replayed, roofline, timeline, times.
"""

from ddpsim.workload.profile import Buffer, Phase, Workload

__all__ = ["Buffer", "Phase", "Workload"]
