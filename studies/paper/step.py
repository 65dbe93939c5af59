"""One step of the paper's as a point: a model on one of its clusters, with the options of PyTorch 1.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Literal

from studies.paper import setup
from studies.paper.assumptions import CENTRAL, Settings, ends
from studies.paper.figure import Answers

PARTS = ("forward", "backward_compute", "exposed_comm", "optimizer")
"""Of a step, as figure 6 has them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step is one prediction.

    Attributes:
        model: `resnet50` or `bert-large`.
        backend: `nccl` or `gloo`.
        gpus: on servers of eight.
        cluster: name of the machine.
        cap_mb: `bucket_cap_mb`; 0 is a bucket a gradient.
        overlap: whether buckets leave while backward goes on.
        groups: round-robin process groups.
        sync_every: iterations between two synchronisations.
        straggler: factor on the computing time of one GPU.
        algorithm: of NCCL; `auto` is what it chooses.
        settings: what is assumed.
    """

    model: str
    backend: Literal["nccl", "gloo"]
    gpus: int
    cluster: str = setup.EXCLUSIVE
    cap_mb: float = setup.CAP_MB
    overlap: bool = True
    groups: int = 1
    sync_every: int = 1
    straggler: float = 1.0
    algorithm: str = "auto"
    settings: Settings = CENTRAL

    def __str__(self) -> str:
        return f"{setup.NAMES[self.model]} by {setup.BACKENDS[self.backend]} on {self.gpus} GPUs of {self.cluster}"

    @property
    def label(self) -> str:
        """Model and backend, as the paper's panels are titled."""
        return f"{setup.NAMES[self.model]} on {setup.BACKENDS[self.backend]}"

    def answer(self) -> dict[str, float]:
        """Return the iteration and its parts, in seconds, and its gradients, in bytes.

        `local` is the iteration of a GPU without DDP, known of one GPU.
        """
        from ddpsim.bucketing import BucketCaps
        from ddpsim.prediction.predict import predict
        from ddpsim.simulation.job import Job
        from ddpsim.simulation.jobs.simulated import Options

        nodes = -(-self.gpus // setup.GPUS_PER_SERVER)
        options = Options(
            caps=BucketCaps(bucket_cap_mb_list=(setup.FIRST_MB, self.cap_mb)),
            assignment="unused",
            backend=self.backend,
            overlap="on" if self.overlap else "off",
            optimizer="sgd",
            process_groups=self.groups,
            accumulate=self.sync_every,
            sync="last",
            stragglers={0: self.straggler} if self.straggler > 1 else {},
            algorithm=self.algorithm,
        )
        workload = setup.workload(self.model, setup.batch_of(self.model, self.settings))
        made = predict(
            Job(
                workload,
                setup.cluster(self.cluster, self.settings, self.backend),
                nodes=nodes,
                gpus_per_node=min(self.gpus, setup.GPUS_PER_SERVER),
                options=options,
                calibration=setup.constants(self.backend, nodes, self.settings),
            ),
            local_s=None if self.gpus == 1 else 0.0,
            band=False,
        )
        summary = made.summary
        found = {"iteration": made.iteration_s, "local": made.local_s, "bytes": float(workload.gradient_bytes)}
        return found | {part: float(getattr(summary, f"{part}_s")) for part in PARTS}


_OF_BACKEND = {"nccl": ("channel_Bps",), "gloo": ("gloo_Bps", "host_Bps")}


def with_ends(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield steps, each with those at the ends of every assumption that it rests on."""
    for step in steps:
        yield step
        for low, high in _ends(step):
            yield low
            yield high


def _ends(step: Step) -> list[tuple[Step, Step]]:
    names = ("resnet_batch" if step.model == setup.RESNET else "bert_batch", *_OF_BACKEND[step.backend])
    if step.cluster == setup.SHARED:
        names += ("congested_Bps" if step.backend == "nccl" else "congested_tcp_Bps",)
    return [(replace(step, settings=low), replace(step, settings=high)) for low, high in ends(names)]


@dataclass(frozen=True, slots=True)
class Told:
    """A figure of steps is told with its band: each assumption alone at both its ends, joined in quadrature."""

    value: float
    low: float
    high: float

    def text(self, pattern: str = "{:.1%}") -> str:
        """Return the figure with its band."""
        low, high = (pattern.format(end) for end in (self.low, self.high))
        return f"{pattern.format(self.value)} ({low} to {high})"


Figured = Callable[[Mapping[str, Mapping[str, float]]], float]
"""Computes a figure of the answers of named steps."""


def told(answers: Answers, of: Mapping[str, Step], figure: Figured) -> Told:
    """Return a figure of named steps, all of them at the same ends of what they rest on.

    Args:
        of: steps by the names that `figure` takes.
        figure: computes it of the answers of these steps by name.
    """
    value = figure({name: answers[step] for name, step in of.items()})
    down = up = 0.0
    for number in range(len(_ends(next(iter(of.values()))))):
        for end in (0, 1):
            moved = figure({name: answers[_ends(step)[number][end]] for name, step in of.items()}) - value
            down, up = (hypot(down, moved), up) if moved < 0 else (down, hypot(up, moved))
    return Told(value, value - down, value + up)
