"""What a step loses to each resource: how much shorter it would be if the resource took no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ddpsim.collectives.calibration import Calibration
from ddpsim.doubts.causes import HOST_COSTS
from ddpsim.prediction.predict import with_assumptions
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.assumptions import Assumptions
from ddpsim.simulation.costs import undisturbed

By = Literal["computation", "host", "communication"]

_NO_TIME = 2e-9
"""Factor on the time of a resource that takes none; options take none below 1e-9."""


def lost_s(prediction: Prediction, calibration: Calibration | None = None) -> dict[By, float]:
    """Return by resource how much shorter the step of `prediction`, made with `calibration`, would be without it.

    Each is predicted again with that resource taking no time: the device's computation; the host's launches and hooks,
    where host and computation are not one; all collectives, with what they cost computation beside them. Resources that
    work at once hide each other, so that these do not sum to the step.
    """
    now_s, asked = prediction.iteration_s, prediction
    if prediction.options.fidelity == "steps":
        # As with doubts: what a resource changes is told by flows as well.
        asked = replace(prediction, options=replace(prediction.options, fidelity="flow"))
        now_s = _step_s(asked, Assumptions(calibration))
    return {by: max(0.0, now_s - step_s) for by, step_s in _without(asked, calibration)}


def _without(prediction: Prediction, calibration: Calibration | None) -> Iterator[tuple[By, float]]:
    """Yield each resource with the step without it."""
    options = prediction.options
    backend = options.backend_for(prediction.workload)
    yield "computation", _step_s(prediction, Assumptions(calibration, compute=_NO_TIME / options.scale_compute))
    if not prediction.workload.one_clock:
        free = _free_host(backend, calibration)
        yield "host", _step_s(prediction, Assumptions(free, host=_NO_TIME / options.scale_host))
    if prediction.placement.world_size == 1 or options.comm != "real":
        return
    if options.compression == "none":
        yield (
            "communication",
            _step_s(replace(prediction, options=replace(options, comm="noop")), Assumptions(calibration)),
        )
    else:
        # A codec's kernels are no communication, and there is none without a collective to call it.
        yield "communication", _step_s(prediction, Assumptions(undisturbed(backend, calibration), wire_factor=_no_time))


def _step_s(prediction: Prediction, assumptions: Assumptions) -> float:
    return with_assumptions(prediction, assumptions).iteration_s


def _free_host(backend: str, calibration: Calibration | None) -> Calibration:
    """Return the constants in force on a host whose work for DDP takes no time."""
    given = calibration or Calibration.priors(backend)
    known = given.constants.keys()
    names = [name for each in HOST_COSTS if (name := f"{backend}.ddp.{each}") in known]
    return given.with_values(dict.fromkeys(names, 0.0), source="a host that takes no time")


def _no_time(size_bytes: int) -> float:
    return _NO_TIME
