"""What headlines ask: a step of a job by a scheme, an allreduce."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpsim.topology.graph import Cluster, Placement
    from ddpsim.workload import Workload
    from studies.paper.figure import Answers

ALEXNET = "alexnet"
_ALEXNET_FILE = Path(__file__).with_name("alexnet.json.gz")
"""Made by `python -m ddpexec estimate --step studies.paper.alexnet:training_step`; no machine's file is for it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine is a shipped one by its name, or nodes of some GPUs that share one card.

    Attributes:
        name: of the shipped machine, or of this one.
        gpu: model; None where the machine is shipped.
        gpus: of a node.
        network: rate of the card, such as `25Gb/s`.
        kind: of the card: `roce`, `infiniband` or `ethernet`.
        nvlinks: between each two GPUs of a node; 0 has none.
        nvlink: rate of one.
        nodes: that the job takes.
    """

    name: str
    gpu: str | None = None
    gpus: int = 8
    network: str = ""
    kind: str = "ethernet"
    nvlinks: int = 0
    nvlink: str = "20GB/s"
    nodes: int = 1

    def __str__(self) -> str:
        if self.gpu is None:
            return f"{self.nodes} x {self.name}"
        return f"{self.nodes} nodes of {self.gpus} {self.gpu}, {self.network} {self.kind} each"

    @property
    def world_size(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus

    def cluster(self) -> Cluster:
        """Return its graph."""
        from ddpsim.topology.spec import load_topology, parse_topology

        if self.gpu is None:
            return load_topology(self.name)
        return parse_topology(self._yaml(), f"machine {self.name!r}")

    def _yaml(self) -> str:
        half = max(self.gpus // 2, 1)
        sides = [side for side in (range(half), range(half, self.gpus)) if side]
        slots = "".join(
            f"      - {{socket: {socket}, gpus: {list(side)}{', nics: [0]' if socket == 0 else ''}}}\n"
            for socket, side in enumerate(sides)
        )
        pairs = [[*pair, self.nvlinks] for pair in combinations(range(self.gpus), 2)]
        links = f"  nvlink: {{bandwidth: {self.nvlink}, pairs: {pairs}}}\n" if self.nvlinks else ""
        return (
            f"name: {self.name}\nnodes: {self.nodes}\nnode:\n  gpus: {{count: {self.gpus}, model: {self.gpu}}}\n"
            f"{links}  pcie:\n    generation: 3\n    slots:\n{slots}"
            f"  cpu: {{sockets: {len(sides)}, vendor: intel, model: broadwell}}\n"
            f"  nics:\n    - {{count: 1, rate: {self.network}, kind: {self.kind}}}\nfabric: {{kind: flat}}\n"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A job is one prediction: a model at one GPU's pace, on a machine, by a scheme.

    Attributes:
        model: whose gradients are sent.
        gpu: that computes it.
        batch: samples a rank.
        machine: where.
        scheme: as `--scheme` takes it.
        step_s: of one GPU, as somebody measured it; None is the estimate.
        precision: of the step, and of what is sent.
        algorithm: as `--algorithm` takes it.
        accumulate: micro-batches a step, whose gradients are sent once.
    """

    model: str
    gpu: str
    batch: int
    machine: Machine
    scheme: str = "ddp"
    step_s: float | None = None
    precision: str = "fp32"
    algorithm: str = "auto"
    accumulate: int = 1

    def __str__(self) -> str:
        return f"{self.model}, {self.batch} samples a {self.gpu}, {self.scheme} on {self.machine}"

    def answer(self) -> dict[str, float]:
        """Return the mean iteration, one GPU's alone, the communication that is exposed, and the samples a second."""
        from ddpsim.prediction.predict import predict
        from ddpsim.simulation.job import Job
        from ddpsim.simulation.jobs.simulated import Options

        options = Options(
            scheme=self.scheme, algorithm=self.algorithm, accumulate=self.accumulate, backend="nccl", sync="last"
        )
        made = predict(
            Job(
                step_of(self.model, self.gpu, self.batch, self.step_s, self.precision),
                self.machine.cluster(),
                nodes=self.machine.nodes,
                gpus_per_node=self.machine.gpus if self.machine.gpu else None,
                options=options,
            ),
            band=False,
        )
        return {
            "iteration_s": made.iteration_s,
            "alone_s": made.local_s,
            "exposed_s": float(made.summary.exposed_comm_s),
            "samples_per_s": made.samples_per_s,
        }


def times_one(job: Job, answers: Answers) -> float:
    """Return how many times one GPU's pace a job goes at."""
    found = answers[job]
    return float(found["samples_per_s"] * found["alone_s"] / job.batch)


@dataclass(frozen=True, slots=True)
class Allreduce:
    """An allreduce by itself.

    Attributes:
        machine: where.
        algorithm: as `--algorithm` takes it.
        size_bytes: of the message.
    """

    machine: Machine
    algorithm: str
    size_bytes: int

    def answer(self) -> dict[str, float]:
        """Return what it takes."""
        from ddpsim.topology.placement import place

        placement = place(self.machine.cluster(), self.machine.nodes, None)
        return {"seconds": allreduce_s(placement, self.algorithm, self.size_bytes)}


def allreduce_s(placement: Placement, algorithm: str, size_bytes: int) -> float:
    """Return the seconds that an allreduce takes by itself."""
    from ddpsim.collectives.conditions import CollectiveOptions
    from ddpsim.collectives.execute import Collectives

    options = CollectiveOptions(algorithm=algorithm)
    return Collectives(None, placement, backend="nccl", options=options).simulate_s(size_bytes)


@lru_cache(maxsize=8)
def step_of(model: str, gpu: str, batch: int, step_s: float | None, precision: str) -> Workload:
    """Return a step of `batch` samples on `gpu`, scaled to a measured `step_s` where there is one."""
    from ddpsim.workload.anchors import Anchor
    from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
    from ddpsim.workload.files import load_workload
    from ddpsim.workload.gpus import gpu_named

    source = load_workload(str(_ALEXNET_FILE) if model == ALEXNET else model)
    assert source.operators is not None
    shape = ModelShape.of(source, source.operators.with_batch(batch))
    source_of = "the system's own one-GPU figure"
    anchors = () if step_s is None else (Anchor("step", step_s, (), source_of),)
    return estimate(shape, gpu_named(gpu), precision, EstimateOptions(anchors=anchors))
