"""What a step loses to each resource: how much shorter it would be if the resource took no time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.ddp_costs import remove_overlap_costs
from ddpsim.doubts.causes import HOST_COSTS
from ddpsim.prediction.predict import periods_under
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions

By = Literal["computation", "host", "communication"]

_WITHOUT = "without "

_NO_TIME = 2e-9
"""Factor on the time of a resource that takes none; options take none below 1e-9."""


def lost_s(prediction: Prediction, calibration: Calibration | None = None) -> dict[By, float]:
    """Return by resource how much shorter the step of `prediction`, made with `calibration`, would be without it.

    Each is predicted again with that resource taking no time: the device's computation; the host's launches and hooks,
    where host and computation are not one; all collectives, with what they cost computation beside them. Resources that
    work at once hide each other, so that these do not sum to the step. It is told anew where `prediction` was not made
    with `without_each`. The run's graph is let go afterwards.
    """
    without = dict(_without(prediction, calibration))
    # Beside another job, as with doubts, of the job by itself.
    known = [prediction.also[_WITHOUT + by] for by in without if _WITHOUT + by in prediction.also]
    steps = known or periods_under(prediction, list(without.values()))
    prediction.run.let_go()
    lost = (max(0.0, prediction.iteration_s - each.iteration_s) for each in steps)
    return dict(zip(without, lost, strict=True))


def without_each(prediction: Prediction) -> dict[str, Assumptions]:
    """Return what `lost_s` assumes, for `predict`."""
    return {_WITHOUT + by: assumed for by, assumed in _without(prediction, prediction.calibration)}


def _without(prediction: Prediction, calibration: Calibration | None) -> Iterator[tuple[By, Assumptions]]:
    """Yield each resource with the assumption that it takes no time."""
    options = prediction.options
    backend = options.backend_for(prediction.workload)
    yield "computation", Assumptions(calibration, compute=_NO_TIME / options.scale_compute)
    if not prediction.workload.one_clock:
        yield "host", Assumptions(_free_host(backend, calibration), host=_NO_TIME / options.scale_host)
    if prediction.placement.world_size == 1 or options.comm != "real":
        return
    if options.compression == "none":
        yield "communication", Assumptions(calibration, silent=True)
    else:
        # A codec's kernels are no communication, and there is none without a collective to call it.
        yield "communication", Assumptions(remove_overlap_costs(backend, calibration), wire_factor=_no_time)


def _free_host(backend: str, calibration: Calibration | None) -> Calibration:
    """Return the constants in force on a host whose work for DDP takes no time."""
    given = calibration or Calibration.priors(backend)
    known = given.constants.keys()
    names = [name for each in HOST_COSTS if (name := f"{backend}.ddp.{each}") in known]
    return given.with_values(dict.fromkeys(names, 0.0), source="a host that takes no time")


def _no_time(size_bytes: int) -> float:
    return _NO_TIME
