"""What more of each resource would save of a step: its graph under changed constants, as ends of bands are told."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.ddp_costs import Costs
from ddpsim.doubts.causes import HOST_COSTS
from ddpsim.prediction.path import Sensitivity
from ddpsim.prediction.predict import periods_under
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions

PERCENT = 1.0
"""By how much more of a resource a step is told; small beside what makes another choice or order of it."""

_MORE = "more of "

LINKS = {
    "NIC rate": frozenset({"nic"}),
    "NVLink rate": frozenset({"nvlink"}),
    "xGMI rate": frozenset({"xgmi"}),
    "PCIe rate": frozenset({"pcie", "host_bridge", "socket"}),
}
"""Kinds of links by what one buys more of; those between switches follow NICs where the machine's file derives them."""


def sensitivities_of(prediction: Prediction) -> list[Sensitivity]:
    """Return what `PERCENT` more of each resource would save of the iteration of `prediction`, the most first.

    Everything else stays, buckets and schedule too. It is told anew where `prediction` was
    not made with `list_sensitivity_assumptions`.
    """
    more = resources_of(prediction, 1 + PERCENT / 100)
    known = {name: prediction.also[_MORE + name] for name in more if _MORE + name in prediction.also}
    if not known:
        found = periods_under(prediction, list(more.values()), exact=_meet(prediction))
        known = dict(zip(more, found, strict=True))
    saved = [Sensitivity(name, prediction.iteration_s - told.iteration_s, told.retimed) for name, told in known.items()]
    return sorted(saved, key=lambda each: (-each.saved_s, each.resource))


def list_sensitivity_assumptions(prediction: Prediction) -> dict[str, Assumptions]:
    """Return what `sensitivities_of` assumes, for `predict`; nothing where ends are told too roughly for that."""
    if _meet(prediction):
        return {}
    return {_MORE + name: each for name, each in resources_of(prediction, 1 + PERCENT / 100).items()}


def _meet(prediction: Prediction) -> bool:
    """Whether collectives of several groups meet on links.

    Retiming is off by some ten-thousandths of the step there: little beside a doubt, and much beside one per cent of a
    resource.
    """
    return prediction.options.process_groups > 1


def resources_of(prediction: Prediction, factor: float) -> dict[str, Assumptions]:
    """Return the assumption of `factor` times as much of each resource, by its name."""
    calibration, less = prediction.calibration, 1 / factor
    backend = prediction.options.backend_for(prediction.workload)
    # Where the host's time is the computation, what DDP costs it is left.
    host = 1.0 if prediction.workload.one_clock else less
    found = {
        "computation": Assumptions(calibration, compute=less),
        "host": Assumptions(_faster_host(backend, calibration, prediction.workload.device, less), host=host),
    }
    kinds = {link.kind for each in prediction.placement.classes for link in each.template.links}
    if prediction.placement.nodes == 1:
        kinds.discard("nic")
    communicates = prediction.placement.world_size > 1 and prediction.options.comm == "real"
    if communicates:
        found["latency"] = Assumptions(calibration, latency=less)
    elif prediction.options.input_stage == "none":
        return found
    links = {name: wanted & kinds for name, wanted in LINKS.items() if wanted & kinds}
    return found | {name: Assumptions(calibration, links=kind, link_rate=factor) for name, kind in links.items()}


def _faster_host(backend: str, calibration: Calibration | None, device: str, less: float) -> Calibration:
    """Return the constants in force on a host whose work for DDP takes `less` times as long."""
    priors = Calibration.priors(backend)
    given = calibration or priors
    whole = replace(given, constants={**priors.constants, **given.constants})
    costs = Costs.of(backend, calibration, device)
    names = {name: each for each in HOST_COSTS if (name := f"{backend}.ddp.{each}") in whole.constants}
    values = {name: getattr(costs, each) * less for name, each in names.items()}
    return whole.with_values(values, source="a faster host")
