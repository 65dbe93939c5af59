"""What a step loses to each resource, or to two at once: how much shorter it would be if they took no time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.periods import periods_under
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import HOST_COSTS, remove_overlap_costs

By = Literal["computation", "host", "communication", "input", "rank"]

_NO_TIME = 2e-9
"""Factor on the time of a resource that takes none; options take none below 1e-9."""


def lost_s(
    prediction: Prediction, calibration: Calibration | None = None, also: Collection[By] = ()
) -> dict[By, float]:
    """Return by resource how much shorter the step of `prediction`, made with `calibration`, would be without it.

    Each is predicted again with that resource taking no time: the device's computation; the host's launches and hooks,
    where host and computation are not one; the input stage; what ranks given as slower take beyond the others; all
    collectives, with what they cost computation beside them. Resources that work at once hide each other, so that these
    do not sum to the step.

    Args:
        also: resources that take no time in any of these predictions; they are none of those returned.
    """
    resources = [by for by in _resources(prediction) if by not in also]
    # Beside another job, as with doubts, of the job by itself.
    steps = periods_under(prediction, [_assume(prediction, calibration, (by, *also)) for by in resources])
    return {by: max(0.0, prediction.iteration_s - each.iteration_s) for by, each in zip(resources, steps, strict=True)}


def _resources(prediction: Prediction) -> list[By]:
    """Return what a step may be bound by."""
    options = prediction.options
    found: list[By] = ["computation"]
    if not prediction.workload.one_clock:
        found.append("host")
    if options.input_stage != "none":
        found.append("input")
    if options.straggling is not None or any(factor > 1 for factor in options.stragglers.values()):
        found.append("rank")
    return [*found, "communication"] if prediction.placement.world_size > 1 and options.comm == "real" else found


def _assume(prediction: Prediction, calibration: Calibration | None, without: Collection[By]) -> Assumptions:
    """Return the assumption that some resources take no time."""
    options = prediction.options
    backend, silent = options.backend_for(prediction.workload), "communication" in without
    # A codec's kernels are no communication, and there is none without a collective to call it.
    codec = silent and options.compression != "none"
    if codec:
        calibration = remove_overlap_costs(backend, calibration)
    return Assumptions(
        _free_host(backend, calibration) if "host" in without else calibration,
        wire_factor=(lambda size_bytes: _NO_TIME) if codec else None,
        compute=_NO_TIME / options.scale_compute if "computation" in without else 1.0,
        host=_NO_TIME / options.scale_host if "host" in without else 1.0,
        silent=silent and not codec,
        input=0.0 if "input" in without else 1.0,
        excess=0.0 if "rank" in without else 1.0,
    )


def _free_host(backend: str, calibration: Calibration | None) -> Calibration:
    """Return the constants in force on a host whose work for DDP takes no time."""
    given = calibration or Calibration.priors(backend)
    known = given.constants.keys()
    names = [name for each in HOST_COSTS if (name := f"{backend}.ddp.{each}") in known]
    return given.with_values(dict.fromkeys(names, 0.0), source="a host that takes no time")
