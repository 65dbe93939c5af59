"""What more of each resource would save of a step: the step with each one per cent faster, found as ends of bands are.

A finite difference by way of `periods_under`. Start at `sensitivities_of`; `resources_of` says what a resource is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.codec_priors import CODEC_PRIORS
from ddpsim.prediction.path import Sensitivity
from ddpsim.prediction.periods import periods_under
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import TIMES, Costs
from ddpsim.workload.gpus import gpu_of

PERCENT = 1.0
"""By how much a resource is raised: too little to change the order of a step's work, so that this is a derivative."""

LINKS = {
    "NIC rate": frozenset({"nic"}),
    "NVLink rate": frozenset({"nvlink"}),
    "xGMI rate": frozenset({"xgmi"}),
    "PCIe rate": frozenset({"pcie", "host_bridge", "socket"}),
}
"""Kinds of links by what one buys more of; those between switches follow NICs where the machine's file derives them."""

COMPUTATION, THREADS = "computation", "threads that move messages"
_SAME, _COMMUNICATION = "nothing", "communication"
_NOISE = 2e-4
"""Share of a step by which retimed savings are off: a difference of them that is less is none."""

_MEMORY = {"copy_s", "copy_Bps", "memory_passes"}
_HOST = {*TIMES, "graph_s", "broadcast_s"} - _MEMORY
_WAITS = {"pair_s", "behind_s"}
"""DDP's own constants by the resource whose time they are; `_WAITS` are latencies of gloo's allreduces side by side."""


def sensitivities_of(prediction: Prediction) -> list[Sensitivity]:
    """Return what `PERCENT` more of each resource would save of the iteration of `prediction`, the most first.

    Everything else stays, buckets and schedule too.
    """
    more = resources_of(prediction, 1 + PERCENT / 100)
    # Where collectives of several groups meet on links, retiming is off by some ten-thousandths of the step: little
    # beside a doubt, and much beside one per cent of a resource.
    steps = periods_under(prediction, list(more.values()), exact=prediction.options.process_groups > 1)
    by_resource = dict(zip(more, steps, strict=True))
    # The reference is the step with nothing changed, found in the same way, and not the prediction's: of fewer
    # iterations, or retimed, it may differ by more than a per cent of a resource saves.
    same_s = by_resource.pop(_SAME).iteration_s
    saved = {name: same_s - step.iteration_s for name, step in by_resource.items()}
    # All computation includes what slow ranks take beyond the others, which has a line of its own.
    if slow_ranks(prediction) in saved:
        saved[COMPUTATION] -= saved[slow_ranks(prediction)]
    if _COMMUNICATION in saved:
        # What no link and no latency explains of it is the pace of those that send.
        rest_s = saved.pop(_COMMUNICATION) - sum(saved[name] for name in ("latency", *LINKS) if name in saved)
        saved[THREADS] = rest_s if rest_s > _NOISE * prediction.iteration_s else 0.0
        by_resource[THREADS] = by_resource[_COMMUNICATION]
    listed = [Sensitivity(name, saved_s, by_resource[name].retimed) for name, saved_s in saved.items()]
    return sorted(listed, key=lambda each: (-each.saved_s, each.resource))


def slow_ranks(prediction: Prediction) -> str:
    """Return the name of the ranks that `--straggler` or `--straggling` slows; empty where there are none."""
    options = prediction.options
    if options.straggling is not None:
        return "ranks that straggle"
    ranks = [str(rank) for rank, factor in sorted(options.stragglers.items()) if factor > 1]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}" if ranks else ""


def resources_of(prediction: Prediction, factor: float) -> dict[str, Assumptions]:
    """Return the assumption of `factor` times as much of each resource, by its name.

    Together they are the step's whole time, but for communication, which is latency, links and threads in one.
    """
    calibration, less = prediction.calibration, 1 / factor
    options, workload = prediction.options, prediction.workload

    def of_costs(names: Collection[str]) -> Calibration:
        return _faster(prediction, names, less)

    # On a CPU host and computation are one clock: "host" is then what DDP's own work costs it.
    resources = {
        _SAME: Assumptions(calibration),
        COMPUTATION: Assumptions(calibration, compute=less),
        "host": Assumptions(of_costs(_HOST), host=1.0 if workload.one_clock else less),
    }
    if options.input_stage != "none":
        resources["input"] = Assumptions(calibration, input=less)
    if slow_ranks(prediction) and options.straggling is None:
        resources[slow_ranks(prediction)] = Assumptions(calibration, excess=less)
    communicates = prediction.placement.world_size > 1 and options.comm == "real"
    if communicates:
        resources["memory bandwidth"] = Assumptions(of_costs(_MEMORY))
        resources["latency"] = Assumptions(of_costs(_WAITS), latency=less)
        resources[_COMMUNICATION] = Assumptions(of_costs(_WAITS), wire_factor=lambda _: less)
    elif options.input_stage == "none":
        return resources
    # Links by kind; a batch's copy to the device uses PCIe too, without any communication.
    kinds = {link.kind for each in prediction.placement.classes for link in each.template.links}
    if prediction.placement.nodes == 1:
        kinds.discard("nic")
    links = {name: wanted & kinds for name, wanted in LINKS.items() if wanted & kinds}
    return resources | {name: Assumptions(calibration, links=kind, link_rate=factor) for name, kind in links.items()}


def _faster(prediction: Prediction, names: Collection[str], less: float) -> Calibration:
    """Return the constants in force with some of DDP's own `less` times as long, or rates that much higher."""
    backend, workload = prediction.options.backend_for(prediction.workload), prediction.workload
    priors = Calibration.priors(backend)
    calibration = prediction.calibration or priors
    whole = replace(calibration, constants={**priors.constants, **calibration.constants})
    costs = Costs.of(backend, prediction.calibration, gpu_of(workload.gpu, workload.provenance))
    own = {f"{backend}.ddp.{each}": getattr(costs, each) for each in names}
    codecs = [whole.constants[each.name] for each in CODEC_PRIORS[backend] if each.name in whole.constants]
    own |= {each.name: each.value for each in codecs if each.fitted and names is _MEMORY}
    values = {
        name: value / less if whole.constants[name].unit == "B/s" else value * less
        for name, value in own.items()
        if name in whole.constants and value
    }
    return whole.with_values(values, source="more of a resource") if values else whole
