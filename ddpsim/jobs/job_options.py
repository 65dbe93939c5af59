"""The options of a training job, simulated or real, that both packages understand alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.plan import Assignment
from ddpsim.collectives.conditions import Backend
from ddpsim.compression import CompressionScheme, scheme
from ddpsim.errors import InputError
from ddpsim.options.option import Option, Section, default_of
from ddpsim.options.text import factors, probabilities
from ddpsim.order.consensus import Consensus

Sync = Literal["last", "every"]
DropBuckets = Literal["mixed", "aligned", "remapped"]


def _keep_text(text: str, name: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobOptions:
    """What a user may ask of one training run; a `Job` is one that can be.

    Attributes:
        caps: bucket caps as torch's constructor takes them.
        assignment: which of torch's assignments: `rebuilt`, `initial` or `unused`.
        backend: of the process group; None is the natural one.
        accumulate: micro-batches whose gradients are added up before the optimizer's step; an iteration is one of them.
        sync: which of them reduce gradients: the `last` of a step, the others under `no_sync()`, or `every` one.
        find_unused_parameters: search the graph each forward and reduce a bitmap at the end.
        gradient_as_bucket_view: gradients live in their bucket, so that nothing is copied out.
        broadcast_buffers: rank 0's buffers are broadcast before a forward.
        process_groups: round-robin process groups.
        stragglers: rank to factor on its computing time.
        comm: `real`, or `noop` for hooks and copies without any collective.
        compression: what `ddpsim.compression.scheme` reads: `fp16`, `powersgd:4`, ...
        drop: dotted name of a layer to the probability that an iteration leaves it out.
        drop_buckets: what buckets do where layers are left out, whose bytes are spared only where a bucket has nothing
            else: `mixed` are as without, `aligned` keep each layer apart, `remapped` move up what is left.
        order: when buckets are rebuilt in arrival order, as `ddpsim.order.rebuild` reads it; None is as torch.
        predictor: which arrivals each rank expects, as `ddpsim.order.predictor` takes it: a name, a class, an object.
        consensus: whose expectation wins: `rank0`, `mean` or `slowest`.
        scheme: what is sent, when, and what waits for it, as `ddpsim.schedules.named.scheme_named` reads it.
        overlap: `off` sends nothing before backward has ended.
        input_stage: `none`, `recorded`, or what `ddpsim.options.input_stage.input_stage` reads.
        scale_compute: factor on device time.
        seed: of every draw, from 0 to 2^63 - 1.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    assignment: Annotated[
        Assignment,
        Option("torch's assignment: after its rebuild, of its first iteration, or of find_unused_parameters."),
        Section.BUCKETS,
    ] = "rebuilt"
    find_unused_parameters: Annotated[
        bool,
        Option(
            "As torch's option: its buckets where parameters may stay unused, a search and a bitmap each iteration."
        ),
        Section.BUCKETS,
    ] = False
    backend: Annotated[
        Backend | None,
        Option("Process group backend; nccl is RCCL on AMD's GPUs. [nccl on GPUs, gloo on CPUs]"),
        Section.JOB,
    ] = None
    accumulate: Annotated[
        int, Option("Micro-batches a step: their gradients add up.", "N", also=("no_sync_every",)), Section.JOB
    ] = 1
    sync: Annotated[
        Sync, Option("Which micro-batches reduce gradients: the last alone (no_sync), or every one."), Section.JOB
    ] = "last"
    gradient_as_bucket_view: Annotated[
        bool, Option("Gradients live in their bucket; no copy out."), Section.BUCKETS
    ] = False
    broadcast_buffers: Annotated[
        bool,
        Option(
            "Broadcast rank 0's buffers before a forward.", off="Do not broadcast rank 0's buffers before a forward."
        ),
        Section.BUCKETS,
    ] = True
    process_groups: Annotated[int, Option("Round-robin process groups.", "K"), Section.BUCKETS] = 1
    stragglers: Annotated[
        Mapping[int, float],
        Option(
            "Rank and factor on its compute time; may be repeated.",
            "RANK:F",
            name="straggler",
            parse=factors,
            repeated=True,
        ),
        Section.WHAT_IF,
    ] = field(default_factory=dict)
    comm: Annotated[
        Literal["real", "noop"], Option("noop: hooks and copies without communication, the floor."), Section.WHAT_IF
    ] = "real"
    compression: Annotated[
        str,
        Option("none, fp16, bf16, powersgd:RANK, onebit, topk:DENSITY or adaptive[:BITS].", "SCHEME"),
        Section.BUCKETS,
    ] = "none"
    drop: Annotated[
        Mapping[str, float],
        Option(
            "Leave a layer out of an iteration with probability P; may be repeated.",
            "LAYER:P",
            parse=probabilities,
            repeated=True,
        ),
        Section.BUCKETS,
    ] = field(default_factory=dict)
    drop_buckets: Annotated[
        DropBuckets,
        Option(
            "With `drop`: mixed, torch's buckets; aligned, none that holds a layer beside anything else; remapped, "
            "what is left moves up into the memory of the first buckets."
        ),
        Section.BUCKETS,
    ] = "mixed"
    order: Annotated[
        str | None,
        Option(
            "When buckets are rebuilt in arrival order; drift:TAU:EVERY looks every so many backwards. "
            "[as torch, and from the first iteration on]",
            "never|once|drift",
        ),
        Section.BUCKETS,
    ] = None
    predictor: Annotated[
        Any,
        Option(
            "With `order`: which arrivals a rank expects; package.module:Class is anybody's own.",
            "last|mean|exponential|branch|context",
            parse=_keep_text,
            text="last",
        ),
        Section.BUCKETS,
    ] = "last"
    consensus: Annotated[Consensus, Option("With `order`: whose expectation wins."), Section.BUCKETS] = "rank0"
    scheme: Annotated[
        str,
        Option(
            "What is sent, when, and what waits for it: ddp, naive, flat, dataparallel, priority[:SEGMENT], dear, "
            "zero1, zero2, zero3, fsdp2[:noreshard,offload], hsdp:SHARDS, averaging:STEPS, slowmo:STEPS, "
            "local-sgd:STEPS, horovod, multiworker-mirrored, "
            "parameter-server[:servers=N|nodes=M|beside=K,async], parallax, gradientflow, or "
            "package.module:function.",
            "NAME",
        ),
        Section.BUCKETS,
    ] = "ddp"
    overlap: Annotated[
        Literal["on", "off"], Option("off: nothing is sent before backward has ended."), Section.BUCKETS
    ] = "on"
    input_stage: Annotated[
        str,
        Option(
            "How batches are loaded and copied to the GPU before forward: none, recorded (as the workload has it), or "
            "load=TIME,workers=N,copy=SIZE,rate=RATE with pinned, queued or pipelined.",
            "STAGE",
        ),
        Section.JOB,
    ] = "none"
    scale_compute: Annotated[
        float, Option("Factor on device time; 0.5 is twice as fast, in predictions only.", "F"), Section.WHAT_IF
    ] = 1.0
    seed: Annotated[int, Option("Of every draw.", "S"), Section.JOB] = 0

    def __repr__(self) -> str:
        """Return the options that are not as they are where nobody asks."""
        asked = ", ".join(
            f"{each.name}={value!r}" for each in fields(self) if (value := getattr(self, each.name)) != default_of(each)
        )
        return f"{type(self).__name__}({asked})"

    @property
    def codec(self) -> CompressionScheme:
        """How buckets are compressed."""
        try:
            return scheme(self.compression)
        except InputError as error:
            error.at("compression")

    @property
    def scheduled(self) -> bool:
        """Whether a schedule takes the place of DDP as torch has it."""
        return self.scheme != "ddp" or self.overlap == "off"
