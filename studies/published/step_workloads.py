"""Workloads of published steps: shipped estimates, or transformers of stated shapes, at one GPU's measured pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError
from ddpsim.common.units import parse_time
from ddpsim.prediction.carry import Factors, retimed
from ddpsim.workload import Workload
from ddpsim.workload.estimate import estimate
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.profile import Phase
from ddpsim.workload.replayed import with_optimizer

_HOST_S = 20e-6
"""Host time of a parameter's part of a phase: far below the device's."""

_AHEAD = 0.8
"""Share of a step that its host takes at most where it has to be ahead of the device."""


def workload_of(spec: Mapping[str, Any], group: Mapping[str, str], gpu: str, one_s: float, dtype: str) -> Workload:
    """Return the workload that `spec` describes, at a pace of `one_s` a step, as if it had been captured there.

    Args:
        spec: `shipped`, the name of an estimate with columns of the group in braces, and the `optimizer` where it is
            stated; or `counted`, a model of the one-GPU study by the group's, of which `half` have gradients of 16 bits
            under amp; or `estimated`, a step of `tests.ddpexec.capturing.gpt2_steps`, as `of_own_step` takes it; or
            `transformer`, shapes of the parameters `before` the layers, of a `layer`, how many `layers`, and
            `after` them, with the `optimizer`'s time.
        group: columns that rows of this workload share.
        dtype: of gradients; empty keeps the workload's.
    """
    if "transformer" in spec:
        return transformer(one_s=one_s, dtype=dtype, gpu=gpu, **spec["transformer"])
    if "counted" in spec:
        found = counted(spec["counted"][group["model"]], group, gpu, one_s)
        half = group["precision"] == "amp" and group["model"] in spec.get("half", ())
        narrow = tuple(replace(each, dtype="float16") for each in found.parameters)
        return replace(found, parameters=narrow) if half else found
    if "estimated" in spec:
        return of_own_step(gpu=gpu, one_s=one_s, dtype=dtype, **spec["estimated"])
    name = spec["shipped"].format(**group)
    try:
        found = load_workload(name)
    except UnknownNameError:
        from studies.published.published_table import estimated

        found = estimated(name)
    return updated(replace(found, device=gpu), spec["optimizer"], one_s) if "optimizer" in spec else known(found, one_s)


def counted(model: str, group: Mapping[str, str], gpu: str, one_s: float) -> Workload:
    """Return the estimate of a model of the one-GPU study, at the precision and batch of `group`."""
    from studies.estimates import step_shapes
    from studies.estimates.one_gpu_steps import Step

    on, length = gpu_named(gpu).with_fitted(), 384 if model.startswith("bert") else 0
    precision = "tf32" if group["precision"] == "fp32" and "tf32" in on.peak_flops else group["precision"]
    batch = int(group["batch_per_gpu"])
    step = Step("", gpu, model, precision, batch, length, False, "momentum", 1, one_s, "")
    return known(estimate(step_shapes.shape(step), on, precision), one_s)


def updated(workload: Workload, optimizer: str, one_s: float) -> Workload:
    """Return `workload` with `optimizer` as it is counted, forward and backward at the pace that is left of `one_s`."""
    changed = with_optimizer(workload, optimizer, clipping=False)
    update_s = float(changed.optimizer.device_s[0])
    paced = known(replace(changed, optimizer=Phase(np.zeros(1), np.zeros(1))), one_s - update_s)
    return replace(paced, optimizer=changed.optimizer)


def of_own_step(
    *, gpu: str, one_s: float, dtype: str, step: str, batch: int, precision: str, one_gpu: str, optimizer: str
) -> Workload:
    """Return the estimate of one of `gpt2_steps`, whose one-GPU step had another optimizer than the job has.

    Args:
        dtype: of the parameters that the job's optimizer updates, and its peers send.
        step: its size there, with `batch` samples in `precision`.
        one_gpu, optimizer: of the one-GPU step, in that precision, and of the job, in fp32.
    """
    plain = _estimated(step, batch, precision, gpu)
    wide = replace(plain, parameters=tuple(replace(each, dtype="float32") for each in plain.parameters))
    paced = updated(plain, one_gpu, one_s)
    own = wide.parameters if dtype == "float32" else plain.parameters
    return replace(paced, parameters=own, optimizer=with_optimizer(wide, optimizer, clipping=False).optimizer)


@cache
def _estimated(step: str, batch: int, precision: str, gpu: str) -> Workload:
    from ddpexec.capturing.estimate import estimate_step
    from tests.ddpexec.capturing import gpt2_steps

    return estimate_step(partial(gpt2_steps.training, getattr(gpt2_steps, step), batch, precision), gpu)


def known(workload: Workload, one_s: float) -> Workload:
    """Return `workload` at the measured pace of one GPU, as if it had been captured there: its device works throughout.

    A host that was estimated to take longer than the step is taken to be ahead of it.
    """
    phases = (workload.forward, workload.backward, workload.optimizer)
    factor = one_s / sum(float(phase.device_s[0]) for phase in phases)
    host = min(1.0, _AHEAD * one_s / sum(float(phase.host_s[0]) for phase in phases))
    forward, backward, optimizer = (Phase(phase.host_s * host, phase.device_s) for phase in phases)
    hastened = replace(
        workload,
        estimated=False,
        gradient_hook_s=workload.gradient_hook_s * host,
        forward=forward,
        backward=backward,
        optimizer=optimizer,
    )
    return retimed(hastened, Factors(factor, np.full(len(workload.parameters), factor), factor, factor))


def transformer(
    *,
    one_s: float,
    dtype: str,
    gpu: str,
    layers: int,
    layer: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    optimizer: str,
    checkpointed: bool = False,
) -> Workload:
    """Return a transformer's step: a third of what the optimizer leaves is forward; gradients take as their bytes.

    Args:
        checkpointed: whether backward computes the layers' forward again, and forward is a quarter.
    """
    shapes = [*before, *(shape for _ in range(layers) for shape in layer), *after]
    inside = [f"h.{place}." for place in range(layers) for _ in layer]
    names = [f"{block}p{n}" for n, block in enumerate([*("" for _ in before), *inside, *("" for _ in after)])]
    parameters = tuple(
        Parameter(name, tuple(shape), dtype, "cuda:0") for name, shape in zip(names, shapes, strict=True)
    )
    optimizer_s = parse_time(optimizer, "optimizer")
    backward_s = (one_s - optimizer_s) * (3 / 4 if checkpointed else 2 / 3)
    sizes = np.array([prod(shape) for shape in shapes], dtype=float)
    last = np.cumsum(sizes[::-1])[::-1] / sizes.sum()
    one, hooks = np.ones(1), np.arange(len(shapes), 0, -1, dtype=float) * _HOST_S
    return Workload(
        name="transformer", device=gpu, precision="bf16", batch_size=1, threads=None, estimated=False,
        parameters=parameters, buffers=(), forward=Phase(hooks[:1], (one_s - optimizer_s - backward_s) * one),
        backward=Phase(hooks[:1], backward_s * one), optimizer=Phase(hooks[:1], optimizer_s * one),
        gradient_hook_s=hooks[None, :], gradient_ready_s=np.maximum(backward_s * last, hooks)[None, :],
        provenance={}, arithmetic_share=ARITHMETIC_SHARE,
    )  # fmt: skip


ARITHMETIC_SHARE = 0.6
"""Of a transformer whose operators nobody counted: that of the shipped GPT-2 on an A100 is 0.58."""
