"""Runs on this processor."""

from __future__ import annotations

from typing import Any

import torch

from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from tests.ddpexec.small import small_workload

CPU = torch.device("cpu")


def trained_run(settings: RunSettings, **subject: Any) -> Run:
    """Return a run that has trained, of `small_workload` where no subject is given."""
    run = Run(settings, CPU, **(subject or {"workload": small_workload()}))
    run.train()
    return run
