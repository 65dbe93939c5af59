"""Random jobs whose steps are simulated, and what may be changed of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Literal
from unittest.mock import patch

from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.channels import find_channels
from ddpsim.collectives.execute import Collectives, make_transport
from ddpsim.collectives.nccl import costs
from ddpsim.collectives.nccl.tuning import ll_max, tree_max
from ddpsim.collectives.transport import Transport
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.sensitivities import PERCENT, sensitivities_of
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation import job as simulation_job
from ddpsim.simulation.ddp_costs import HOST_COSTS
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import DegradedLink
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.graph import Placement
from ddpsim.topology.node import Degradation, Link
from ddpsim.topology.spec import load_topology, parse_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload

MACHINES = ("dgx-1v", "p3dn.24xlarge", "dgx-a100", "dgx-h100", "4xv100-pcie", "p3.8xlarge", "hgx-a100-4", "abci-v")
WORKLOADS = ("mlp", "resnet18", "resnet50")
SCHEMES = (
    "ddp", "naive", "flat", "priority", "priority:1MiB", "dear", "zero1", "zero2", "zero0", "zero3", "fsdp2", "hsdp:2",
    "horovod", "multiworker-mirrored", "gradientflow", "parameter-server", "averaging:2", "slowmo:2", "local-sgd:2",
)  # fmt: skip
MORE_WORKLOADS = ("mlp", "resnet50", "vgg16@h100-bf16-b32", "bert-large@v100-fp32-b8", "gpt2-small")
FIDELITIES: tuple[Literal["flow", "closed", "steps"], ...] = ("flow", "closed", "steps")
MOST_TRANSFERS = 2000
"""Single transfers of a collective that is carried out by them; more take seconds."""
ALGORITHMS = ("auto", "auto", "auto", "ring", "ring", "tree")


@dataclass(frozen=True, slots=True)
class Job:
    """A job is what is predicted: a step's seconds follow from it.

    Attributes:
        pace: how many times as fast as they are known to be all constants are; None is the product's own use of them,
            which derives some from the device.
        memory: part of what its own scheme needs that a GPU has; the step is then the shortest of the schemes that fit.
    """

    workload: Workload
    topology: Topology
    nodes: int
    gpus: int
    options: Options
    pace: float | None = None
    memory: float | None = None

    def placement(self) -> Placement:
        """Return its ranks on its machine."""
        return self.topology.place(self.nodes, self.gpus)

    def step_s(self) -> float:
        """Return the simulated step."""
        if self.memory is not None:
            return self._shortest_that_fits_s(self.memory)
        calibration = None if self.pace is None else _faster_constants(self.pace)
        with _faster_limits(self.pace or 1.0):
            return summarise(simulate(self.workload, self.placement(), self.options, calibration)).iteration_s

    def _shortest_that_fits_s(self, part: float) -> float:
        """Return the shortest step of schemes that fit a GPU's memory, infinity where none does."""
        found = [
            predict(replace(self.asked, options=replace(self.options, scheme=scheme)), band=False)
            for scheme in (self.options.scheme, "ddp", "zero3")
        ]
        needs = [(each.memory, each.summary.iteration_s) for each in found]
        capacity = next((memory.step_bytes * part for memory, _ in needs if memory is not None), 0.0)
        fits = (
            step_s
            for memory, step_s in needs
            if memory is not None and replace(memory, capacity_bytes=int(capacity)).fits is not False
        )
        return min(fits, default=float("inf"))

    @property
    def asked(self) -> simulation_job.Job:
        """What `predict` is asked."""
        return simulation_job.Job(self.workload, self.topology, self.nodes, self.gpus, self.options)

    def __str__(self) -> str:
        asked = f"{self.options.scheme}, {self.options.algorithm}"
        return f"{self.workload.name} on {self.nodes} x {self.gpus} of {self.topology.name} by {asked}"


def job_of(random: Random) -> Job:
    """Return a random job; one that is refused is for the caller to draw again."""
    topology = load_topology(random.choice(MACHINES))
    most = topology.place(1).gpus_per_node
    scheme = random.choice(SCHEMES)
    options = Options(scheme=scheme, algorithm=random.choice(ALGORITHMS), iterations=3)
    return Job(load_workload(random.choice(WORKLOADS)), topology, random.choice((1, 2, 4)), most, options)


def _links(topology: Topology, change: Callable[[Link], Link], rates: float = 1.0, times: float = 1.0) -> Topology:
    groups = []
    for group in topology.groups:
        template = group.template
        links = tuple(map(change, template.links))
        nics = tuple(
            replace(nic, bandwidth=nic.bandwidth * rates, latency_s=nic.latency_s * times) for nic in template.nics
        )
        groups.append(replace(group, template=replace(template, links=links, nics=nics)))
    return replace(topology, groups=tuple(groups))


def more_bandwidth(job: Job, random: Random) -> Job:
    """Return the job with all links faster."""
    factor = random.choice((1.25, 2.0, 4.0))
    changed = _links(job.topology, lambda link: replace(link, bandwidth=link.bandwidth * factor), factor)
    return replace(job, topology=changed)


def less_latency(job: Job, random: Random) -> Job:
    """Return the job with latencies of all links and cards a half or a tenth."""
    part = random.choice((0.5, 0.1))
    changed = _links(job.topology, lambda link: replace(link, latency_s=link.latency_s * part), times=part)
    return replace(job, topology=changed)


def faster_device(job: Job, random: Random) -> Job:
    """Return the job on a faster device."""
    return replace(job, options=replace(job.options, scale_compute=random.choice((0.9, 0.5))))


def fewer_nodes(job: Job, random: Random) -> Job:
    """Return the job on one node."""
    if job.nodes == 1:
        raise InputError("one node")
    return replace(job, nodes=1)


def fewer_gpus(job: Job, random: Random) -> Job:
    """Return the job on half of a node's GPUs."""
    if job.nodes > 1 or job.gpus == 1:
        raise InputError("several nodes, or one GPU")
    return replace(job, gpus=job.gpus // 2)


def with_channels_as_fast(job: Job, other: Job) -> Job:
    """Return the job with its links as much faster as the channels that NCCL finds for `other` carry more."""
    here, there = (
        find_channels(
            each.placement().classes[0].template, each.placement().gpus(each.placement().classes[0]),
            network=each.nodes > 1,
        )
        for each in (job, other)
    )  # fmt: skip
    factor = max(there.sustained_bandwidth / here.sustained_bandwidth, 1.0)
    if not 1.0 <= factor < float("inf"):
        return job
    return replace(job, topology=_links(job.topology, lambda link: replace(link, bandwidth=link.bandwidth * factor)))


def same_file(job: Job, random: Random) -> Job:
    """Return the job on its machine as it is written to a file and read again."""
    return replace(job, topology=parse_topology(dump_topology(job.topology), "again"))


def short_of_memory(job: Job, random: Random) -> Job:
    """Return the job with about as much memory as its scheme needs."""
    return replace(job, memory=random.uniform(0.5, 1.6))


def more_memory(job: Job, random: Random) -> Job:
    """Return the job with more memory."""
    return replace(job, memory=(job.memory or 1.0) * random.choice((1.1, 1.5, 4.0)))


def of_known_constants(job: Job, random: Random) -> Job:
    """Return the job with each constant as it is known; one whose scheme has a time of its own is drawn again."""
    if job.options.scheme == "horovod":
        raise InputError("a cycle of 1 ms on whichever machine")
    return replace(job, pace=1.0)


def all_faster(job: Job, random: Random) -> Job:
    """Return the job with all rates of machine, device and constants times k, and all times through k."""
    factor = random.choice((0.5, 2.0, 3.0))
    changed = _links(
        job.topology,
        lambda link: replace(link, bandwidth=link.bandwidth * factor, latency_s=link.latency_s / factor),
        factor,
        1 / factor,
    )
    options = replace(job.options, scale_compute=1 / factor, scale_host=1 / factor)
    return replace(job, topology=changed, options=options, pace=factor)


def _faster_constants(factor: float) -> Calibration:
    """Return NCCL's and DDP's constants where all goes `factor` times as fast; `scale_host` has the host's."""
    found = Calibration.priors("nccl")
    by_unit, host = {"s": 1 / factor, "B/s": factor}, {f"nccl.ddp.{name}" for name in HOST_COSTS}
    scaled = {
        name: replace(each, value=each.value * (1.0 if name in host else by_unit.get(each.unit, 1.0)), fitted=True)
        for name, each in found.constants.items()
    }
    return replace(found, constants=scaled)


@contextmanager
def _faster_limits(factor: float) -> Iterator[None]:
    """Multiply the rates that NCCL's table has of its protocols, in GB/s."""
    with (
        patch.object(costs, "ll_max", lambda shape: ll_max(shape) * factor),
        patch.object(costs, "tree_max", lambda shape, protocol: tree_max(shape, protocol) * factor),
    ):
        yield


def accumulating(job: Job, random: Random) -> Job:
    """Return the job with one or several micro-batches a step, that sends under backward or after it."""
    overlap: Literal["on", "off"] = random.choice(("on", "off"))
    scheme = random.choice((job.options.scheme, "ddp"))
    return replace(
        job, options=replace(job.options, accumulate=random.choice((1, 2, 3)), overlap=overlap, scheme=scheme)
    )


def one_stage(job: Job, random: Random) -> Job:
    """Return the job as a pipeline of one stage, which has its micro-batches."""
    order: Literal["gpipe", "1f1b"] = random.choice(("gpipe", "1f1b"))
    pipeline = Pipeline(order=order, stages=1, micro_batches=job.options.accumulate)
    return replace(job, options=replace(job.options, accumulate=1, pipeline=pipeline))


def one_rank(job: Job, random: Random) -> Job:
    """Return the job on one GPU, with or without what changes what a bucket is."""
    options = replace(
        job.options, gradient_as_bucket_view=random.random() < 0.5, find_unused_parameters=random.random() < 0.2
    )
    return replace(job, nodes=1, gpus=1, options=options)


def of_any_workload(job: Job, random: Random) -> Job:
    """Return the job with any of more workloads, on two GPUs of a node or all, at any fidelity but the slowest."""
    fidelity: Literal["flow", "closed"] = random.choice(("flow", "closed"))
    gpus = random.choice((2, job.gpus))
    options = replace(job.options, fidelity=fidelity, iterations=None)
    return replace(job, workload=load_workload(random.choice(MORE_WORKLOADS)), gpus=gpus, options=options)


def of_resources(job: Job, random: Random) -> Job:
    """Return the job with a workload and a scheme all of whose times are some resource's.

    Gradients of `mlp` lag behind their kernels, half of its step, and Horovod's cycle is 1 ms on whichever machine.
    """
    if job.options.scheme == "horovod":
        raise InputError("a cycle of 1 ms on whichever machine")
    return replace(job, workload=load_workload(random.choice(MORE_WORKLOADS[1:])))


def unchanged(job: Job, random: Random) -> Job:
    """Return the job as it is."""
    return job


def hidden_and_whole_s(job: Job, same: Job) -> tuple[float, float]:
    """Return the step without what it waits for communication, and with it."""
    found = summarise(simulate(job.workload, job.placement(), job.options))
    return found.iteration_s - found.exposed_comm_s, found.iteration_s


def percents_s(job: Job, same: Job) -> tuple[float, float]:
    """Return what one per cent less of all its times would save of a step, and what one more of each resource does."""
    found = _predict(job)
    return found.iteration_s * PERCENT / (100 + PERCENT), sum(each.saved_s for each in sensitivities_of(found))


def told_s(job: Job, same: Job) -> tuple[float, float]:
    """Return the step as `predict` tells it, and as `plan` does or a plan file of the same buckets, the farther off."""
    found = _predict(job)
    planned = SimulatedRun.of(job.asked)
    others = [planned.plan_and_period()[1]]
    if job.options.scheme == "ddp":
        others.append(_predict(replace(job, options=replace(job.options, plan=found.plan))).iteration_s)
    return found.iteration_s, max(others, key=lambda other: abs(other - found.iteration_s))


def _predict(job: Job) -> Prediction:
    return predict(job.asked, band=False, local_s=1.0)


def rows_s(job: Job, same: Job) -> tuple[float, float]:
    """Return a row of a table that a calibration has of the job's ranks, and the same collective as it is predicted.

    Of each fidelity and several sizes and operations the one that is farthest off.
    """
    random, placement, backend = Random(str(job)), job.placement(), job.topology.backend
    model = make_transport(placement, backend, None, replace(job.options.collective, isolated=False))
    sizes = sorted(random.sample([1 << power for power in range(10, 32)], 6))
    operations = (Operation.ALLREDUCE, random.choice(list(Operation)))
    curves = [
        Curve(
            job.topology.fingerprint(), placement.nodes, placement.gpus_per_node,
            tuple(CurvePoint(size, random.uniform(0.5, 2.0) * model.time_s(operation, size)) for size in sizes),
            job.options.algorithm, operation=operation,
        )
        for operation in dict.fromkeys(operations)
    ]  # fmt: skip
    calibration = replace(Calibration.priors(backend), curves=tuple(curves))
    found: list[tuple[float, float]] = []
    for fidelity in FIDELITIES:
        options = replace(job.options.collective, isolated=False, fidelity=fidelity)
        collectives = Collectives(None, placement, backend=backend, calibration=calibration, options=options)
        for curve in curves:
            for point in curve.points:
                few = fidelity != "steps" or _transfers(model, curve.operation, point.size_bytes) < MOST_TRANSFERS
                if few:
                    found.append((point.time_s, collectives.simulate_s(point.size_bytes, curve.operation)))
    return max(found, key=lambda pair: abs(pair[1] / pair[0] - 1))


def _transfers(model: Transport, operation: Operation, size_bytes: int) -> float:
    try:
        return model.transfers(operation, size_bytes)
    except InputError:  # more than are ever carried out
        return float("inf")


def slow_first_node(job: Job, random: Random) -> Job:
    """Return the job with a slow card at the first of its nodes, or with slow GPUs there."""
    if alike(job) < 2:
        raise InputError("no two nodes to change")
    return _slow(job, 0, card=random.random() < 0.5)


def slow_other_node(job: Job, random: Random) -> Job:
    """Return the job with what is slow at another of the nodes that are alike."""
    return _slow(job, random.randrange(1, alike(job)), card=bool(job.topology.degraded))


def alike(job: Job) -> int:
    """Return how many nodes, from the first on, do the same: servers are the last ranks, and use one card of theirs."""
    return job.nodes - 1 if job.options.scheme == "parameter-server" else job.nodes


def _slow(job: Job, node: int, *, card: bool) -> Job:
    links = [link.name for link in job.topology.groups[0].template.links if link.kind == "nic"]
    if card and links:
        slow = DegradedLink("-".join(sorted(links[0].split(">"))), node, Degradation(1e9))
        return replace(job, topology=replace(job.topology, degraded=(slow,)))
    ranks = {node * job.gpus + gpu: 1.3 for gpu in range(job.gpus)}
    return replace(job, options=replace(job.options, stragglers=ranks))
