"""The doubts of a prediction: which of its causes nobody measured, and what each may do to the run.

Start at `doubts_of`. It lists, in this order: the device's and the host's computing time (`_pace`); collectives, by the
machine's own rows or by their family of transports (`_collective`), and two things that only make them longer: GPUs far
from the NIC that a scheduler hands out (`far_from_nics`), flows that switches hash onto one way to the spine
(`collisions`); DDP's own costs, measured (`_list_measured_costs`) or at their priors (`_list_unmeasured_costs`); the
loader.

Doubts are joined in quadrature as independent causes. What one measurement would settle together is therefore one doubt
here, all its constants moved to the same end at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ddpsim.collectives.bands import Band
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import GPU_BACKENDS, CollectiveOptions
from ddpsim.collectives.execute import layout_of, make_transport
from ddpsim.collectives.nccl.versions import CURRENT
from ddpsim.prediction.doubts import collectives
from ddpsim.prediction.doubts.doubt import Doubt
from ddpsim.prediction.doubts.spreads import (
    AMD_SOFTWARE,
    BESIDE,
    COLLISIONS,
    COPIES,
    CUTS,
    DDP_HOST,
    DEVICES,
    DOUBT,
    EAGER_LAUNCH,
    ENCODING,
    HOST_LAUNCH,
    INPUT,
    MEASURED_COLLECTIVE,
    PACE,
    UNPRICED,
    Spread,
    at_end,
    find_fusing_spreads,
)
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import HOST_COSTS, Costs
from ddpsim.simulation.jobs.graph_cuts import GraphCuts
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.far_gpus import farthest_from_nics
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.anchors import (
    DEVICE_REPEATS,
    GIVEN,
    MEASURED_ON,
    MOSTLY_COMMUNICATION,
    TERM_SHARES,
    RooflineFactors,
)
from ddpsim.workload.fusing import CompiledAs
from ddpsim.workload.gpus import gpu_of

_HASHED = {"roce", "tcp", "tcpx", "ethernet", "ena", "gvnic"}
"""Kinds of cards whose switches route each flow by a hash unless a machine's file says otherwise.

InfiniBand and Slingshot route adaptively, and EFA sprays packets over many ways.
"""


def collisions(placement: Placement, sizes: Sequence[int]) -> Band | None:
    """Return by size the factor on a collective where its flows between leaf switches collide; its low end is 1.

    None where none crosses a spine, or where the fabric routes adaptively.
    """
    routing = placement.topology.fabric.routing
    kinds = {nic.kind for each in placement.classes for nic in each.template.nics}
    if placement.nodes == 1 or not placement.trunks or routing == "adaptive":
        return None
    if routing is None and not kinds & _HASHED:
        return None
    if all(load.link.link.kind != "network" for load in layout_of(placement, CURRENT, expand=False).ring.loads):
        return None
    return Band({max(size, 1): (1.0, math.exp(COLLISIONS.high)) for size in sizes})


_MATTERS = 1.02
"""Factor on a collective from which on the choice of GPUs is a doubt: what measured rows repeat to."""


def far_from_nics(
    placement: Placement, calibration: Calibration | None, sizes: Sequence[int], algorithm: str = "auto"
) -> Band | None:
    """Return by size the factor on an allreduce over NCCL where each node's ranks are on its GPUs farthest from a NIC.

    The band's low end is 1. None where a file says which GPUs are visible, all of a node are used, or it does not
    matter. Where bytes to a NIC rest in host memory the farthest cost most: they cross from socket to socket, and NCCL
    may take trees for rings.
    """
    others = farthest_from_nics(placement)
    if others is None:
        return None
    options = CollectiveOptions(algorithm=algorithm, isolated=False)
    constants = None if calibration is None else replace(calibration, curves=())
    near, far = (make_transport(each, "nccl", constants, options) for each in (placement, others))
    distinct = sorted({max(size, 1) for size in sizes})
    factors = {size: (1.0, max(far.allreduce_s(size) / near.allreduce_s(size), 1.0)) for size in distinct}
    return Band(factors) if any(high > _MATTERS for _, high in factors.values()) else None


_NAMES = {
    "roofline": "estimated compute times",
    "counted": "estimated compute times",
    "anchored": "estimated compute times, scaled to a published step",
    "carried": "estimated compute times, scaled to a step of another GPU",
    "measured": "the given step time",
    "captured": "captured compute times",
}
_CLOCKS = ("host_s", "device_s")
_CAPTURE = "`python -m ddpexec capture` on that GPU"
_MICROBENCH = "`torchrun ... -m ddpexec microbench` on one node"
_UNDER_LOAD = "`microbench --under-load` on one node"


def doubts_of(
    workload: Workload,
    placement: Placement,
    options: Options,
    calibration: Calibration | None,
    sizes: Sequence[int],
) -> list[Doubt]:
    """Return the doubts of a run, in no order.

    Args:
        sizes: bytes of its collectives.
    """
    now = Assumptions(calibration)
    doubts = list(_pace(workload, now))
    backend = options.backend_for(workload)
    if placement.world_size > 1 and options.comm == "real":
        doubts.append(_collective(placement, backend, calibration, options.algorithm, sizes))
        doubts += _list_longer(placement, backend, calibration, options.algorithm, sizes)
    constants = _constants(backend, calibration)
    doubts += _list_measured_costs(constants)
    doubts += _list_encoding_doubts(constants, workload, options)
    if options.input_stage != "none":
        low, high = (replace(now, input=math.exp(end)) for end in (INPUT.low, INPUT.high))
        doubts.append(Doubt("loading of batches", "time the loader by itself, in this loop", low, high))
    return doubts + list(_list_unmeasured_costs(constants, workload, placement, options))


def pace_of(workload: Workload) -> str:
    """Return by what a workload's device time is known: a key of `PACE`.

    A row that is mostly communication anchors nothing.
    """
    if not workload.estimated:
        return "captured"
    floor, factors, scaled_to = (workload.provenance.get(key) for key in ("row_floor_share", "pace", "scaled_to"))
    unanchored = "counted" if TERM_SHARES in workload.provenance else "roofline"
    if MEASURED_ON in workload.provenance:
        return "carried"
    if scaled_to:
        mostly_communication = isinstance(floor, float) and floor > MOSTLY_COMMUNICATION
        return unanchored if mostly_communication else "measured" if GIVEN in str(scaled_to) else "anchored"
    # Factors other than one on the roofline's terms come from published steps of the same GPU.
    return "anchored" if isinstance(factors, Mapping) and dict(factors) != RooflineFactors().document() else unanchored


def _pace(workload: Workload, now: Assumptions) -> Iterator[Doubt]:
    """Yield the doubts of the workload itself: its device's time, and its host's where that was estimated.

    Layers that sleep have exact times, and no doubt. A step that was measured and given is known as well as its
    measurement repeats. Its device and its host then move together, and the one thing open is which of them sets the
    step (`_list_fill_doubts`): it decides how much communication the step can hide.
    """
    if workload.timed:
        return
    how = pace_of(workload)
    spread, left = PACE[how], PACE["captured"].high / PACE[how].high
    if how == "measured" and (repeats := _find_repeat_spread(workload)) is not None:
        spread, left = Spread(-math.log1p(repeats), math.log1p(repeats), "the repetitions of the step given"), 1.0
    low, high = (replace(now, compute=math.exp(end)) for end in (spread.low, spread.high))
    if how == "measured" and not workload.one_clock:
        # The whole step repeats to so much: device and host are scaled alike.
        low, high = (replace(end, host=end.compute) for end in (low, high))
    # A capture measures again what a capture or a given step measured, and leaves nothing of an estimate's doubt but a
    # capture's own.
    again = how in ("captured", "measured")
    yield Doubt(_NAMES[how], f"{_CAPTURE}{' again' if again else ''}", low, high, min(left, 1.0))
    if how == "measured":
        yield from _list_fill_doubts(workload, now)
        return
    # A step anchored on a published compiled one has the compiler's gain in its pace already.
    if how != "anchored" and (compiled := CompiledAs.of(workload.provenance)) is not None:
        device, host = find_fusing_spreads(compiled)
        eager = replace(now, compute=math.exp(device.high), host=math.exp(host.high))
        yield Doubt("what torch.compile saves", _CAPTURE, None, eager)
    if rests_on_nvidia(workload):
        yield Doubt("AMD's software", _CAPTURE, None, replace(now, compute=math.exp(AMD_SOFTWARE.high)))
    if workload.estimated and not workload.one_clock:
        launch = _launch_spread(workload)
        low, high = (replace(now, host=math.exp(end)) for end in (launch.low, launch.high))
        yield Doubt("host launches", _CAPTURE, low, high)


def _list_fill_doubts(workload: Workload, now: Assumptions) -> Iterator[Doubt]:
    """Yield the doubt of whether device or host sets a step whose measured time was given.

    The workload has both times, one of which was scaled to the step. Four cases: the step repeats as closely as devices
    do, so that the device sets it; the step is longer than launches take at their slowest, so that the device must set
    it; the device sets it as estimated, but slow launches could; the host sets it as estimated, but the device could.
    In the first two launches are a doubt like any; in the last two the other explanation is one end.
    """
    if workload.one_clock:
        return
    phases = (workload.forward, workload.backward, workload.optimizer)
    host_s, device_s = (sum(float(np.median(getattr(each, clock))) for each in phases) for clock in _CLOCKS)
    if not host_s or not device_s:
        return
    launch = _launch_spread(workload)
    low, high = math.exp(launch.low), math.exp(launch.high)
    repeats = _find_repeat_spread(workload)
    if repeats is not None and repeats <= DEVICE_REPEATS:
        high = min(high, max(device_s / host_s, 1.0))
        yield Doubt("host launches", _CAPTURE, replace(now, host=low), replace(now, host=high))
    elif device_s > high * host_s:
        yield Doubt("host launches", _CAPTURE, replace(now, host=low), replace(now, host=high))
    elif device_s > host_s:
        # If the host fills it, the device was not slow: it takes what the roofline says, before it was scaled up.
        scale = workload.provenance.get("scale")
        roofline = 1 / scale if isinstance(scale, float) and scale > 1 else 1.0
        by_host = replace(now, compute=roofline, host=device_s / host_s)
        yield Doubt("whether host or device fills the step", _CAPTURE, by_host, None)
    else:
        by_device = replace(now, compute=host_s / device_s, host=low)
        yield Doubt("whether host or device fills the step", _CAPTURE, None, by_device)


def rests_on_nvidia(workload: Workload) -> bool:
    """Whether a GPU of AMD is taken to reach the shares of its peaks that NVIDIA's do: no step on one is known."""
    if not workload.estimated or pace_of(workload) in ("anchored", "measured"):
        return False
    gpu = gpu_of(workload.gpu, workload.provenance)
    return gpu is not None and gpu.spec.gcn is not None


def _launch_spread(workload: Workload) -> Spread:
    return EAGER_LAUNCH if TERM_SHARES in workload.provenance else HOST_LAUNCH


def _find_repeat_spread(workload: Workload) -> float | None:
    """Return the share of a step that was given within which its repetitions lie; None where that is not known."""
    repeats = workload.provenance.get("repeats")
    return float(repeats) if isinstance(repeats, int | float) and 0 <= repeats < 1 else None


def _collective(
    placement: Placement, backend: str, calibration: Calibration | None, algorithm: str, sizes: Sequence[int]
) -> Doubt:
    wire = collectives.band(placement, backend, calibration, sizes, algorithm)
    widest = max((math.log(wire.high(size) / wire.low(size)) for size in sizes), default=0.0)
    left = min(2 * MEASURED_COLLECTIVE / widest, 1.0) if widest else 1.0
    low, high = (Assumptions(calibration, wire_factor=factor) for factor in (wire.low, wire.high))
    measured = collectives.covers(calibration, placement, backend, algorithm)
    several = "two nodes" if placement.nodes == 2 or not measured else f"{placement.nodes} nodes"
    where = several if placement.nodes > 1 else "one node"
    tests = {"nccl": "nccl-tests", "rccl": "rccl-tests"}.get(backend, "`ddpexec microbench`")
    return Doubt(f"allreduce over {collectives.family(placement, backend)}", f"{tests} on {where}", low, high, left)


def _list_longer(
    placement: Placement, backend: str, calibration: Calibration | None, algorithm: str, sizes: Sequence[int]
) -> Iterator[Doubt]:
    """Yield what may make collectives longer: which GPUs of its nodes a job gets, flows that hash onto one trunk."""
    if backend not in GPU_BACKENDS or collectives.covers(calibration, placement, backend, algorithm):
        return
    far, hashed = far_from_nics(placement, calibration, sizes, algorithm), collisions(placement, sizes)
    for name, remedy, wire in (
        ("GPUs far from the NIC", "`visible_devices` of the job in the machine's file", far),
        ("ECMP collisions", "`routing: adaptive` in the machine's file, where switches do", hashed),
    ):
        if wire is not None:
            yield Doubt(name, remedy, None, Assumptions(calibration, wire_factor=wire.high))


def _list_measured_costs(constants: Calibration) -> list[Doubt]:
    """Return the doubt of DDP's measured costs: microbenchmarks scatter."""
    low, high = (at_end(constants, end) for end in (-1, 1))
    if low == high:
        return []
    return [Doubt("DDP's measured costs", _MICROBENCH + " again", Assumptions(low), Assumptions(high), 1.0)]


def _list_encoding_doubts(constants: Calibration, workload: Workload, options: Options) -> Iterator[Doubt]:
    """Yield the doubt of what a compression scheme's encoding costs, where that is priced as copies."""
    backend, name = options.backend_for(workload), options.codec.name
    codec = Costs.of(backend, constants, workload.device).codec(name, one_thread=workload.one_clock)
    family = name.partition(":")[0]
    values = {f"{family}_kernel_s": codec.launch_s, f"{family}_Bps": codec.memory_bandwidth}
    known = {key: constants.constants.get(f"{backend}.ddp.{key}") for key in values}
    prior = [key for key, constant in known.items() if constant is not None and not constant.fitted]
    if prior:
        ends = {key: scale_ends(key, values[key], ENCODING) for key in prior}
        low, high = (_with(constants, backend, {key: pair[number] for key, pair in ends.items()}) for number in (0, 1))
        yield Doubt("encoding", _MICROBENCH, low, high, DOUBT / ENCODING.high)


def _list_unmeasured_costs(
    constants: Calibration, workload: Workload, placement: Placement, options: Options
) -> Iterator[Doubt]:
    """Yield the doubts of DDP's costs at their priors; costs that cannot be told apart share one.

    Of each cost there are three states: measured (`_list_measured_costs` doubts it), a prior with a spread (`scaled`),
    and a backend without a price for it, whose prior is no cost at all (`raised`: only the high end is another).
    """
    backend = options.backend_for(workload)
    costs = Costs.of(backend, constants, workload.device)
    prior = {name for name in _names(backend) if not constants.constants[f"{backend}.ddp.{name}"].fitted}

    def scaled(spreads: Mapping[str, Spread]) -> tuple[Assumptions, Assumptions]:
        ends = {name: scale_ends(name, getattr(costs, name), each) for name, each in spreads.items() if name in prior}
        low, high = ({name: pair[number] for name, pair in ends.items()} for number in (0, 1))
        return _with(constants, backend, low), _with(constants, backend, high)

    def raised(names: Collection[str]) -> tuple[None, Assumptions]:
        return None, _with(
            constants, backend, {name: UNPRICED[name] for name in names if name in prior & set(UNPRICED)}
        )

    left = DOUBT / DDP_HOST.high
    if prior & set(HOST_COSTS):
        yield Doubt("DDP's host costs", _MICROBENCH, *scaled(dict.fromkeys(HOST_COSTS, DDP_HOST)), left)
    if prior & set(COPIES):
        yield Doubt("copies into buckets", _MICROBENCH, *scaled(COPIES), DOUBT / COPIES["copy_Bps"].high)
    if (
        prior & set(CUTS)
        and (cuts := GraphCuts.of(workload, options, costs.graph_s, costs.graph_passes)) is not None
        and cuts.device_s
    ):
        yield Doubt("traffic where torch.compile splits the graph", "measure the step at another cap", *scaled(CUTS))
    if placement.world_size == 1:
        return
    priced = set(BESIDE) <= _names(backend)
    low: Assumptions | None
    # A backend without prices of the mechanisms (memory passes, multiprocessors) has only the slowdowns they come to.
    if options.comm == "real" and (overlap := _find_overlap_priors(prior) if priced else prior & set(_FACTORS)):
        low, high = scaled({name: BESIDE[name] for name in overlap}) if priced else raised(overlap)
        left = DOUBT / BESIDE["tail_share"].high
        yield Doubt("slowdown where computation overlaps collectives", _UNDER_LOAD, low, high, left)
    if not workload.one_clock and prior & set(DEVICES):
        low, high = scaled(DEVICES) if priced else raised(DEVICES)
        left = DOUBT / DEVICES["pace_spread"].high
        yield Doubt("speed differences between GPUs", "one process on each GPU in turn", low, high, left)


_FACTORS = {
    "compute_slowdown": {"channel_multiprocessors", "memory_passes"},
    "enter_s": {"late_kernels"},
    "communication_slowdown": {name for name in BESIDE if name.endswith("_slowdown")},
}
"""A slowdown, and the prices that it is derived from where it was neither measured nor set."""


def _find_overlap_priors(prior: set[str]) -> set[str]:
    """Return the prices of overlap that are priors and in force: a slowdown that is known overrides its prices."""
    settled = {part for whole, parts in _FACTORS.items() if whole not in prior for part in parts}
    if not prior & {"compute_slowdown", "enter_s"}:
        settled = settled | {"tail_share"}
    return prior & set(BESIDE) - settled


def scale_ends(name: str, value: float, spread: Spread) -> tuple[float, float]:
    """Return a cost of DDP at the fast and at the slow end of its spread: a rate is slow where it is low.

    A slow-down doubts what it adds.
    """
    if name.endswith("_slowdown"):
        return 1 + (value - 1) * math.exp(spread.low), 1 + (value - 1) * math.exp(spread.high)
    sign = -1 if name.endswith("Bps") else 1
    return value * math.exp(sign * spread.low), value * math.exp(sign * spread.high)


def _names(backend: str) -> set[str]:
    return {name.removeprefix(f"{backend}.ddp.") for name in _constants(backend, None).constants if ".ddp." in name}


def _with(constants: Calibration, backend: str, values: Mapping[str, float]) -> Assumptions:
    named = {f"{backend}.ddp.{name}": value for name, value in values.items()}
    return Assumptions(constants.with_values(named, source="an end of its band"))


def _constants(backend: str, calibration: Calibration | None) -> Calibration:
    """Return the constants in force, DDP's too."""
    priors = Calibration.priors(backend).constants
    if calibration is None:
        return Calibration(backend, priors)
    return replace(calibration, constants={**priors, **calibration.constants})
