"""Where a run comes from: what `run.json` says beside its numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ddpexec.describe import device_model

if TYPE_CHECKING:
    from ddpexec.running.run import Run
    from ddpexec.running.timed import Replay


BEGAN = time.time()
"""When this process began to import what a run needs, seconds since the epoch."""


def provenance(run: Run, command: list[str]) -> dict[str, object]:
    """Return what `run.json` says of where a run comes from."""
    settings = run.settings
    plan = run.plan_in_force()
    return {
        "made_by": "ddpexec.running.run",
        "command": command,
        "began": _moment(BEGAN),
        "time": _moment(time.time()),
        "torch": torch.__version__,
        "implementation": settings.implementation,
        "model": run.subject.model.name,
        "batch_size": settings.batch_size or run.subject.model.batch_size,
        "compute_device": device_model(run.device),
        "threads": torch.get_num_threads() if run.device.type == "cpu" else None,
        "seed": settings.seed,
        "late_gradients": _late(run.subject.replay),
        "plan": plan.document(),
        "plan_fingerprint": plan.fingerprint(),
        "options": {
            "bucket_cap_mb": settings.caps.bucket_cap_mb,
            "bucket_cap_mb_list": settings.caps.bucket_cap_mb_list,
            "first_bucket_mb": settings.caps.first_bucket_mb,
            "assignment": settings.assignment,
            "no_sync_every": settings.no_sync_every,
            "find_unused_parameters": settings.find_unused_parameters,
            "gradient_as_bucket_view": settings.gradient_as_bucket_view,
            "broadcast_buffers": settings.broadcast_buffers,
            "process_groups": settings.process_groups,
            "stragglers": {str(rank): factor for rank, factor in settings.stragglers.items()},
            "comm": settings.comm,
            "compression": settings.compression,
            "drop": dict(settings.drop),
            "order": settings.order,
            "predictor": settings.predictor,
            "consensus": settings.consensus,
            "scale_compute": settings.scale_compute,
        },
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _late(replay: Replay | None) -> float | None:
    """Return the share of rank 0's timed gradients that came later than the replay's tolerance; None without any."""
    return None if replay is None or replay.gradients == 0 else replay.late / replay.gradients
