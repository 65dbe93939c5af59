"""Random jobs, what is changed of each, and whether the step went the way that it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from ddpsim.collectives.execute import Collectives
from ddpsim.errors import InputError
from ddpsim.jobs.collective import CollectiveOptions
from ddpsim.operations.operation import Operation
from ddpsim.simulation import Options, simulate
from ddpsim.simulation.costs import Calibration
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import DegradedLink
from ddpsim.topology.dump import dump_topology
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
ROUNDING = 1e-3
"""Of a step: times of chunks and shares of a flow are cut at other places when rates differ; less than is told."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job is what is predicted: a step's seconds follow from it."""

    workload: Workload
    topology: Topology
    nodes: int
    gpus: int
    options: Options

    def step_s(self) -> float:
        """Return the simulated step."""
        placement = self.topology.place(self.nodes, self.gpus)
        return summarise(simulate(self.workload, placement, self.options)).iteration_s

    def __str__(self) -> str:
        asked = f"{self.options.scheme}, {self.options.algorithm}"
        return f"{self.workload.name} on {self.nodes} x {self.gpus} of {self.topology.name} by {asked}"


def job_of(random: Random) -> Job:
    """Return a random job; one that is refused is for the caller to draw again."""
    topology = load_topology(random.choice(MACHINES))
    most = topology.place(1).gpus_per_node
    scheme = random.choice(SCHEMES)
    options = Options(scheme=scheme, algorithm=random.choice(("auto", "auto", "ring")), iterations=3)
    return Job(load_workload(random.choice(WORKLOADS)), topology, random.choice((1, 2, 4)), most, options)


def _links(topology: Topology, change: Callable[[Link], Link], nics: float = 1.0) -> Topology:
    groups = []
    for group in topology.groups:
        template = group.template
        links = tuple(map(change, template.links))
        ports = tuple(replace(nic, bandwidth=nic.bandwidth * nics) for nic in template.nics)
        groups.append(replace(group, template=replace(template, links=links, nics=ports)))
    return replace(topology, groups=tuple(groups))


def _more_bandwidth(job: Job, random: Random) -> Job:
    factor = random.choice((1.25, 2.0, 4.0))
    changed = _links(job.topology, lambda link: replace(link, bandwidth=link.bandwidth * factor), factor)
    return replace(job, topology=changed)


def _less_latency(job: Job, random: Random) -> Job:
    factor = random.choice((0.5, 0.1))
    return replace(job, topology=_links(job.topology, lambda link: replace(link, latency_s=link.latency_s * factor)))


def _faster_device(job: Job, random: Random) -> Job:
    return replace(job, options=replace(job.options, scale_compute=random.choice((0.9, 0.5))))


def _fewer_ranks(job: Job, random: Random) -> Job:
    return replace(job, nodes=1) if job.nodes > 1 else replace(job, gpus=max(1, job.gpus // 2))


def _same_file(job: Job, random: Random) -> Job:
    return replace(job, topology=parse_topology(dump_topology(job.topology), "again"))


def _slow_node(job: Job, node: int) -> Job:
    links = [link.name for link in job.topology.groups[0].template.links if link.kind == "nic"]
    if not links or job.nodes < 2:
        raise InputError("no node of several has a NIC")
    name = "-".join(sorted(links[0].split(">")))
    slow = DegradedLink(name, node, Degradation(1e9))
    return replace(job, topology=replace(job.topology, degraded=(slow,)))


@dataclass(frozen=True, slots=True)
class Law:
    """A law is a change after which a step is no longer than before, or with `equal` as long.

    Attributes:
        before: what is made of a random job first.
    """

    name: str
    after: Callable[[Job, Random], Job]
    before: Callable[[Job], Job] = lambda job: job
    equal: bool = False

    def holds(self, before_s: float, after_s: float) -> bool:
        """Return whether two steps are as the law has them."""
        if self.equal and after_s < before_s * (1 - ROUNDING):
            return False
        return after_s <= before_s * (1 + ROUNDING)


def _by_ring(job: Job) -> Job:
    return _slow_node(replace(job, options=replace(job.options, algorithm="ring", scheme="ddp")), 0)


LAWS = (
    Law("more bandwidth", _more_bandwidth),
    Law("less latency", _less_latency),
    Law("faster device", _faster_device),
    Law("fewer ranks", _fewer_ranks),
    Law("permuted nodes", lambda job, random: _slow_node(job, random.randrange(1, job.nodes)), _by_ring, True),
    Law("units of the file", _same_file, equal=True),
)

SIZES = (*(1 << power for power in range(12, 29, 4)), 25 << 20)


def choices(job: Job) -> set[tuple[str, str]]:
    """Return the algorithms and protocols that NCCL's model takes over sizes of messages, from its `tuning.cc`."""
    placement = job.topology.place(job.nodes, job.gpus)
    collectives = Collectives(
        None, placement, backend="nccl", calibration=Calibration.priors("nccl"),
        options=CollectiveOptions(algorithm=job.options.algorithm),
    )  # fmt: skip
    found = (collectives.choice(size, Operation.ALLREDUCE) for size in SIZES)
    return {(size, each.algorithm, each.protocol, each.channels) for size, each in zip(SIZES, found, strict=True)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: `holds`, `broken`, `choice` where NCCL's model took something else, or `refused`."""

    law: str
    what: str
    case: str
    before_s: float = 0.0
    after_s: float = 0.0


def judged(seed: int, number: int) -> Outcome:
    """Return what became of one case; seed and number make the same one each time."""
    random = Random(f"{seed} {number}")
    law = LAWS[number % len(LAWS)]
    while True:
        try:
            before = law.before(job_of(random))
            after = law.after(before, random)
            before_s, after_s = before.step_s(), after.step_s()
            break
        except InputError:
            continue
    if law.holds(before_s, after_s):
        return Outcome(law.name, "holds", str(before), before_s, after_s)
    what = "choice" if choices(before) != choices(after) else "broken"
    return Outcome(law.name, what, str(before), before_s, after_s)
