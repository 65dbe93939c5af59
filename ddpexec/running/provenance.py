"""Where a run comes from: what `run.json` says beside its numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ddpexec.capturing.describe import device_model
from ddpexec.ddp.planner import ProbedLink
from ddpsim.bucketing.order.predictors import predictor_name
from ddpsim.common.options.option import list_declared, option_values
from ddpsim.simulation.jobs.job_options import JobOptions

if TYPE_CHECKING:
    from ddpexec.running.run import Run
    from ddpexec.running.settings import RunSettings


_ELSEWHERE = {"backend", "seed"}
"""Options that a trace or its provenance tells beside the others."""

BEGAN = time.time()
"""When this process began to import what a run needs, seconds since the epoch."""


def provenance(run: Run, command: list[str]) -> dict[str, object]:
    """Return what `run.json` says of where a run comes from."""
    settings = run.settings
    plan = run.plan_in_force()
    replay = run.subject.replay
    size = settings.batch_size or run.subject.model.batch_size
    return {
        "made_by": "ddpexec.running.run",
        "command": command,
        **describe_training(BEGAN, settings.carried_out_by, run.subject.model.name, size, run.device),
        "seed": settings.seed,
        "late_gradients": replay.late / replay.gradients if replay is not None and replay.gradients else None,
        **_list_planning_probes(run),
        "first": run.first(),
        "plan": plan.document(),
        "plan_fingerprint": plan.fingerprint(),
        "options": {**options(settings), **settings.periodic},
    }


def describe_training(
    began_s: float, implementation: str, model: str, batch_size: int | None, device: torch.device
) -> dict[str, object]:
    """Return what both a run and a trace of somebody's loop tell of the training and of when it was."""
    return {
        "began": utc(began_s),
        "time": utc(time.time()),
        "torch": torch.__version__,
        "implementation": implementation,
        "model": model,
        "batch_size": batch_size,
        "compute_device": device_model(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
    }


def options(settings: RunSettings) -> dict[str, object]:
    """Return the job's options by field name, without those that stand elsewhere in the document."""
    job = {each.field for each in list_declared(JobOptions)} - _ELSEWHERE
    values = {name: value for name, value in option_values(settings).items() if name in job}
    values["predictor"] = predictor_name(values["predictor"])
    return {name: _plain(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _list_planning_probes(run: Run) -> dict[str, object]:
    """Return what a schedule was planned by: seconds of an allreduce of nothing, and bytes a second beyond."""
    wire = getattr(run.ddp, "wire", None)
    if not isinstance(wire, ProbedLink):
        return {}
    return {"probed": {"fixed_s": wire.fixed_s, "bytes_per_s": wire.rate}}


def _plain(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in mapping.items()}


def utc(seconds: float) -> str:
    """Return seconds since the epoch as a date and a time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
