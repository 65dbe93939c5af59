"""A workload small enough to be replayed in milliseconds."""

from __future__ import annotations

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.workload import Workload
from ddpsim.workload.profile import Buffer, Phase


def small_workload(parameters: int = 6, numel: int = 3000, step_s: float = 0.001) -> Workload:
    """Return a workload whose gradients come one every `step_s`, the last registered first."""
    ready = np.array([[step_s * (parameters - i) for i in range(parameters)]])

    def phase(seconds: float) -> Phase:
        return Phase(np.array([seconds]), np.array([seconds]))

    return Workload(
        name="small", device="cpu", precision="fp32", batch_size=1, threads=1, estimated=True,
        parameters=tuple(Parameter(f"layer{i}.weight", (numel,)) for i in range(parameters)),
        buffers=(Buffer("layer0.mean", (4,)),),
        forward=phase(step_s), backward=phase(step_s * parameters), optimizer=phase(step_s),
        gradient_hook_s=ready, gradient_ready_s=ready,
    )  # fmt: skip
