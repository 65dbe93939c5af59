"""What binds a step: its computation, its host or its communication, and of the latter which link.

Start at `bound_of`. What a step loses to a resource is how much shorter it would be if that took no time (`lost_s`),
and the one without which it would be shortest binds it. Where two hide behind each other, neither loses much by itself,
and both are taken away at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.transport import Transport
from ddpsim.prediction.periods import periods_under
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import HOST_COSTS, remove_overlap_costs
from ddpsim.topology.node import NETWORK
from ddpsim.workload import Workload

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
    resources: list[By] = ["computation"]
    if not prediction.workload.one_clock:
        resources.append("host")
    if options.input_stage != "none":
        resources.append("input")
    if options.straggling is not None or any(factor > 1 for factor in options.stragglers.values()):
        resources.append("rank")
    if prediction.placement.world_size > 1 and options.comm == "real":
        resources.append("communication")
    return resources


def _assume(prediction: Prediction, calibration: Calibration | None, without: Collection[By]) -> Assumptions:
    """Return the assumption that some resources take no time."""
    options = prediction.options
    backend, silent = options.backend_for(prediction.workload), "communication" in without
    # A codec's kernels are computation, and run only where a collective calls them: collectives then stay, and take no
    # time on the wire, rather than being left out.
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
    in_force = calibration or Calibration.priors(backend)
    names = [name for each in HOST_COSTS if (name := f"{backend}.ddp.{each}") in in_force.constants]
    return in_force.with_values(dict.fromkeys(names, 0.0), source="a host that takes no time")


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound says what a step waits for most.

    Attributes:
        by: the resource without which the step would be shortest.
        beside: another that binds it as well: without it the step would be nearly as short, or none shortens it much by
            itself, and this one the most together with `by`; None where one binds alone.
        together_s: how much shorter the step would be without both, where neither shortens it much by itself.
        link: of the links that its collectives load, the one with the most bytes for its capacity; None at one rank.
        link_share: share of the collectives' time in which that link is full; the rest is latency, or the pace of
            NCCL's own threads.
        exposed_share: share of the step that waits for communication.
        lost: by resource how much shorter the step would be if it took no time, seconds.
    """

    by: By
    link: str | None
    link_share: float
    exposed_share: float
    lost: Mapping[By, float]
    beside: By | None = None
    together_s: float | None = None

    def document(self) -> dict[str, object]:
        """Return the bound as keys of a row."""
        return {
            "bound_by": self.by,
            "bound_beside": self.beside,
            "binding_link": self.link,
            "binding_link_share": self.link_share,
            "exposed_share": self.exposed_share,
            "lost_s": dict(self.lost),
            "lost_together_s": self.together_s,
        }


def bound_of(prediction: Prediction, calibration: Calibration | None = None) -> Bound:
    """Return what binds the step of `prediction`, made with `calibration`."""
    summary, lost = prediction.summary, lost_s(prediction, calibration)
    link, share = binding_link(prediction, calibration)
    exposed = (summary.exposed_comm_s + summary.buffer_broadcast_s) / prediction.iteration_s
    first, *others = sorted(lost, key=lambda by: -lost[by])
    beside, together_s = next((by for by in others if lost[by] >= _NEAR * lost[first]), None), None
    if others and lost[first] < _ALONE * prediction.iteration_s:
        # Each hides behind another, so that what the first saves says little: with it gone, which other saves most?
        pairs = lost_s(prediction, calibration, also=[first])
        together_s, beside = max((pairs[by], by) for by in others)
    return Bound(first, link, share, exposed, lost, beside, together_s)


def describe_bound(bound: Bound, workload: Workload) -> str:
    """Return what binds a step, both resources where two do."""
    return " and ".join(describe_resource(by, workload) for by in (bound.by, bound.beside) if by is not None)


def describe_resource(by: By, workload: Workload) -> str:
    """Return a resource in a word; of an estimate's host, whether its launches are a prior.

    The host's time of an estimated step is a launch cost an operator, unless the step was scaled to a measured one that
    its launches bind.
    """
    if by != "host":
        return _WORDS[by]
    pace = workload.provenance.get("pace")
    measured = isinstance(pace, Mapping) and pace.get("host", 1.0) != 1.0
    return "host" if measured or not workload.estimated else "host (launch prior)"


_WORDS: Mapping[By, str] = {
    "computation": "GPU", "host": "host", "communication": "comm.", "input": "input", "rank": "slow rank",
}  # fmt: skip


def binding_link(prediction: Prediction, calibration: Calibration | None) -> tuple[str | None, float]:
    """Return the link that its collectives fill for the longest, and for which share of their time."""
    placement = prediction.placement
    if placement.world_size == 1 or prediction.options.comm != "real":
        return None, 0.0
    backend = prediction.options.backend_for(prediction.workload)
    transport = make_transport(placement, backend, calibration, prediction.options.collective)
    sizes = [prediction.wire_bytes(bucket.parameters) for bucket in prediction.plan.buckets]
    return find_binding_link(transport, sizes)


def find_binding_link(transport: Transport, sizes: list[int]) -> tuple[str | None, float]:
    """Return the link that collectives of `sizes` fill for the longest, and for which share of their time.

    Every link's time is that of its bytes at its capacity; of collectives at the pace of threads alone none is full.
    Among links that are full for as long (a ring's are all alike) a NIC's port is named before others, as it is what is
    bought, then the first by name.
    """
    full_s: dict[str, float] = {}
    total_s = 0.0
    for size in sizes:
        demand = transport.allreduce(size)
        total_s += transport.allreduce_s(size)
        if transport.threads_share(demand) >= 1:
            continue
        for link, load in demand.loads.items():
            name = str(link)
            full_s[name] = full_s.get(name, 0.0) + load * size / transport.capacities[link]
    if not full_s:
        return None, 0.0
    most = max(full_s.values())
    alike = (drop_direction(name) for name, seconds in full_s.items() if seconds >= most * (1 - _ALIKE))
    return min(alike, key=lambda name: (not name.endswith(NETWORK), name)), min(most / total_s, 1.0)


def drop_direction(name: str) -> str:
    """Return a link's name as `--link-rate` takes it: both directions, on the node that stands for all.

    >>> drop_direction("node0/network>nic0"), drop_direction("node2/gpu1>gpu0")
    ('nic0-network', 'node2/gpu0-gpu1')
    """
    node, slash, link = name.rpartition("/")
    source, _, target = link.partition(">")
    ends = sorted((source, target), key=lambda end: (end == NETWORK, end))
    return ("" if node == "node0" else node + slash) + "-".join(ends)


_NEAR = 2 / 3
"""Of what the first resource saves, at least what one saves that binds the step beside it."""

_ALONE = 0.1
"""Share of the step that a resource saves at least that binds it by itself. Chosen by hand."""

_ALIKE = 1e-6
"""Relative difference of times from which on one link binds more than another: above rounding, below any rate."""
