"""On which constants the host's time rests where nobody measured them."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import Constant

LAUNCH_COSTS = ("hook_s", "launch_s", "finish_s", "forward_s", "buffer_s")
"""Constants of DDP that are a GPU's host's time."""


def launch_priors(backend: str, calibration: Calibration | None) -> list[Constant]:
    """Return the constants of the host's time that are priors, not measured."""
    constants = constants_in_force(backend, calibration)
    named = [constants[f"{backend}.ddp.{name}"] for name in LAUNCH_COSTS]
    return [constant for constant in named if not constant.fitted]


def constants_in_force(backend: str, calibration: Calibration | None) -> Mapping[str, Constant]:
    """Return the constants of a calibration by name; None stands for the priors."""
    return (calibration or Calibration.priors(backend)).constants
