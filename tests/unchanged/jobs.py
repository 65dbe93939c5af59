"""The jobs whose simulations are recorded without bands: every option, scheme, backend and machine, a third contended.

A job is contended where ranks compute while they communicate at a price (GPUs whose collectives take multiprocessors
and memory), where several messages share links at once (process groups, input copies, schedules' groups), or where
ranks of one machine share its cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from ddpsim import BucketCaps, InputError, Options, Workload, load_topology, load_workload, predict
from ddpsim.simulation.engine import Simulated
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from ddpsim.trace.records import Iteration
from tests.ddpsim.simulation.builders import workload as small

Digest = dict[str, Any]

MACHINES = (
    ("dgx-1v", 2), ("dgx-a100", 4), ("4x1080ti-pcie", 1), ("p3.16xlarge", 4), ("dgx-h100", 16), ("nc24", 1),
    ("abci-v", 2), ("hgx-a100-4", 1), ("ndv4", 3), ("8xgpu-dual-root", 1), ("gh200-quad", 2), ("p4d.24xlarge", 2),
    ("ddp-paper-shared", 4), ("dgx-2", 1), ("4xv100-pcie", 1), ("g3.16xlarge", 2), ("dgx-b200", 2),
    ("p3dn.24xlarge", 2),
)  # fmt: skip
MODELS = (
    "resnet50", "bert-base@a100-amp-b32", "gpt2-small@a100-amp-b8", "vgg16@v100-fp32-b32", "vit-b16@h100-amp-b32",
    "resnet152@a100-tf32-b32", "mlp@gp100-fp32-b64", "resnext50_32x4d@a100-amp-b32", "bert-large@h100-bf16-b8",
)  # fmt: skip
SCHEMES = (
    "naive", "flat", "priority", "priority:4MiB,credit=16MiB", "dear", "zero0", "zero1", "zero2", "zero1:deepspeed",
    "zero3", "fsdp2", "fsdp2:noreshard,gather=bf16", "hsdp:4", "hsdp:8", "horovod", "multiworker-mirrored",
    "multiworker-mirrored:pack=8MiB", "gradientflow", "parameter-server", "parameter-server:servers=2,async",
    "averaging:4", "slowmo:4", "local-sgd:4", "local-sgd:4,ranks=2", "parallax",
)  # fmt: skip
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"bucket_cap_mb": 5.0}, {"bucket_cap_mb_list": (1.0, 10.0, 50.0)}, {"find_unused_parameters": True},
    {"accumulate": 4}, {"accumulate": 2, "sync": "every"}, {"gradient_as_bucket_view": True},
    {"broadcast_buffers": False}, {"process_groups": 3}, {"stragglers": {1: 1.3}}, {"comm": "noop"},
    {"compression": "fp16"}, {"compression": "powersgd:4"}, {"compression": "topk:0.01"}, {"compression": "onebit"},
    {"order": "once"}, {"order": "drift:0.9:5", "predictor": "mean", "consensus": "mean"}, {"scale_compute": 0.5},
    {"scale_host": 2.0}, {"algorithm": "ring"}, {"fidelity": "closed"}, {"bucket_cap_mb": 0.0},
    {"seed": 3, "iterations": 4, "jitter": 0.05}, {"backend": "gloo"}, {"backend": "gloo", "process_groups": 2},
    {"compiled": True}, {"straggling": "lognormal:0.05"}, {"overlap": "off"}, {"clip_gradients": True},
    {"input_stage": "load=20ms,copy=38MB"}, {"input_stage": "load=12ms,workers=2,copy=38MB,queued"},
    {"input_stage": "load=30ms,workers=3,copy=380MB,pipelined"},
)  # fmt: skip
BESIDE_SCHEMES: tuple[dict[str, Any], ...] = (
    {}, {"accumulate": 2}, {"overlap": "off"}, {"backend": "gloo"},
    {"input_stage": "load=20ms,copy=38MB,pipelined"}, {"jitter": 0.05, "iterations": 3}, {"stragglers": {1: 1.2}},
    {"gradient_as_bucket_view": True, "fidelity": "closed"},
)  # fmt: skip
SMALL: tuple[dict[str, Any], ...] = (
    {}, {"buffers": 3}, {"iterations": 4, "jitter": 0.3, "seed": 1},
    {"device": "V100", "synchronises": ("after_forward",)},
    {"device": "V100", "iterations": 3, "jitter": 0.2, "host_share": 0.9, "buffers": 2},
    {"device": "A100", "host_share": 1.5, "synchronises": ("after_backward", "after_optimizer")},
)  # fmt: skip
"""Of workloads made here: on a CPU, host-bound, with several recorded iterations."""
SMALL_OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"bucket_cap_mb": 1.0}, {"find_unused_parameters": True}, {"accumulate": 3}, {"accumulate": 2, "sync": "every"},
    {"process_groups": 2}, {"stragglers": {1: 1.5}}, {"compression": "powersgd:2"}, {"comm": "noop"},
    {"scheme": "zero1"}, {"scheme": "priority:256KiB"}, {"scheme": "fsdp2"}, {"scheme": "parameter-server"},
    {"scheme": "averaging:2"}, {"fidelity": "steps"}, {"order": "drift:0.9:2"}, {"backend": "gloo"},
    {"scheme": "dear", "backend": "gloo"}, {"scheme": "zero3", "backend": "gloo"}, {"fidelity": "closed"},
    {"input_stage": "load=50ms,workers=1,copy=20MB"}, {"scheme": "parameter-server:async"},
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A job is one simulation: a workload, a machine, so many nodes of it, and options."""

    model: str | tuple[tuple[str, Any], ...]
    machine: str
    nodes: int
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        model = self.model if isinstance(self.model, str) else f"small({', '.join(f'{k}={v}' for k, v in self.model)})"
        return f"{model} on {self.nodes} x {self.machine}: {', '.join(f'{k}={v}' for k, v in self.options) or 'plain'}"

    def workload(self) -> Workload:
        """Return what is trained."""
        return load_workload(self.model) if isinstance(self.model, str) else small(**dict(self.model))

    def run(self) -> Digest:
        """Predict it without a band, at the workload's own pace; return trace and document, or how it is refused."""
        try:
            options = replace(options_of(**dict(self.options)), keep_pace=True)
            found = predict(self.workload(), load_topology(self.machine), nodes=self.nodes, options=options, band=False)
            return {"trace": digest(found.trace), "document": found.document()}
        except InputError as error:
            return {"refused": str(error)}


def options_of(
    *, bucket_cap_mb: float | None = None, bucket_cap_mb_list: Sequence[float] = (), **given: Any
) -> Options:
    """Return options with bucket caps, in MiB, and a pipeline written as on the command line."""
    caps = [bucket_cap_mb] if bucket_cap_mb is not None else list(bucket_cap_mb_list)
    if "pipeline" in given:
        given["pipeline"] = parse_pipeline(given["pipeline"], "pipeline")
    return Options(**({"caps": BucketCaps(bucket_cap_mb_list=caps)} if caps else {}), **given)


def digest(trace: Simulated) -> Digest:
    """Return what a trace says, in short."""
    return {
        "iterations": [iteration(each) for each in trace.iterations],
        "spans": [len(trace.spans), sum(span.start_s + 2 * span.duration_s for span in trace.spans)],
        "plan": trace.plan.fingerprint(),
        "servers": trace.provenance.get("servers"),
    }


def iteration(record: Iteration) -> Digest:
    """Return the times of one iteration: parts, buckets, and of gradients the sums."""
    return {
        "rank": record.rank,
        "index": record.index,
        "flags": [record.synced, record.stepped],
        **{
            field.name: getattr(record, field.name)
            for field in dataclasses.fields(record)
            if field.name.endswith("_s") and isinstance(getattr(record, field.name), int | float)
        },
        "buckets": [
            [
                b.index, b.size_bytes, str(b.operation), b.ready_s, b.launched_s, b.started_s, b.wire_s, b.finished_s,
                b.written_s,
            ]
            for b in record.buckets
        ],
        "gradients": [
            sum(place * gradient.hook_s for place, gradient in enumerate(record.gradients, 1)),
            sum(place * gradient.ready_s for place, gradient in enumerate(record.gradients, 1)),
            [gradient.parameter for gradient in record.gradients[:3]],
        ],
    }  # fmt: skip


def jobs() -> Iterator[Job]:
    """Yield all jobs, 365 at least."""
    models, machines = cycle(MODELS), cycle(MACHINES)

    def job(options: dict[str, Any], model: str | None = None) -> Job:
        machine, nodes = next(machines)
        return Job(model or next(models), machine, nodes, tuple(options.items()))

    for options in OPTIONS:
        yield job(options)
        yield job(options)
    beside = cycle(BESIDE_SCHEMES)
    for scheme in SCHEMES:
        for machine, nodes in (("dgx-1v", 2), ("4xv100-pcie", 1)):
            yield Job(next(models), machine, nodes, (("scheme", scheme), *next(beside).items()))
    for scheme in SCHEMES:
        options = {"scheme": scheme, **next(beside)}
        yield Job(
            "mlp", "lab-flat", 4, tuple((k, v) for k, v in options.items() if k not in ("backend", "input_stage"))
        )
    yield Job("resnet50", "dgx-1v", 1, (("scheme", "dataparallel"),))
    yield Job(
        "bert-base@a100-amp-b32", "dgx-a100", 1, (("scheme", "dataparallel"), ("input_stage", "load=5ms,copy=38MB"))
    )
    kinds = cycle(SMALL)
    for options in SMALL_OPTIONS:
        for _ in range(4):
            made = next(kinds)
            machine, nodes = ("lab-flat", 3) if made.get("device", "cpu") == "cpu" else ("dgx-1v", 1)
            yield Job(tuple(made.items()), machine, nodes, tuple(options.items()))
        next(kinds)
    ways = cycle(("mixed", "aligned", "remapped"))
    for machine, nodes in MACHINES:
        drop = {"layer1.1.conv1": 0.3, "layer3.2.conv2": 0.5, "fc": 0.2}
        yield Job("resnet50", machine, nodes, (("drop", drop), ("drop_buckets", next(ways)), ("iterations", 4)))
        yield Job("bert-base@a100-amp-b32", machine, nodes, (("process_groups", 2), ("bucket_cap_mb", 10.0)))
    yield from beyond_data_parallel()


BERT, GPT2 = "bert-base@a100-amp-b32", "gpt2-small@a100-amp-b8"
A100S = (("dgx-a100", 2), ("p4d.24xlarge", 2), ("hgx-a100-4", 1), ("abci-a", 2))


def beyond_data_parallel() -> Iterator[Job]:
    """Yield jobs with groups beside the data-parallel one, other schemes' details, other vendors and racks."""
    schemes = cycle(("ddp", "zero1", "zero3", "priority", "fsdp2"))
    for ranks in (2, 4):
        for model in (BERT, GPT2):
            for machine, nodes in A100S:
                options: dict[str, Any] = {"tensor_parallel": ranks, "scheme": next(schemes)}
                yield Job(model, machine, nodes, tuple(options.items()))
    for order in (
        "gpipe:2,micro-batches=4",
        "1f1b:4,micro-batches=8",
        "1f1b:2",
        "interleaved:2,stages-per-rank=2",
        "1f1b:2,micro-batches=4,mapping=tp-dp-pp",
        "gpipe:4,boundary=8MiB",
    ):
        for machine, nodes in A100S[:2]:
            yield Job(GPT2, machine, nodes, (("pipeline", order),))
        yield Job(GPT2, "dgx-a100", 2, (("pipeline", order), ("tensor_parallel", 2)))
        yield Job(BERT, "dgx-a100", 2, (("pipeline", order), ("bucket_cap_mb", 5.0)))
    for name in (
        "parameter-server:servers=4",
        "parameter-server:nodes=1",
        "parameter-server:beside=2",
        "parameter-server:tictac",
        "parameter-server:servers=2,async",
        "parameter-server:nodes=1,async",
        "parameter-server:servers=3",
    ):
        for machine, nodes in (("dgx-1v", 2), ("lab-flat", 4)):
            yield Job("resnet50" if machine == "dgx-1v" else "mlp", machine, nodes, (("scheme", name),))
    for scheme in ("fsdp2:offload", "fsdp2:offload,noreshard", "zero3", "zero2:deepspeed", "hsdp:4"):
        yield Job(BERT, "dgx-a100", 2, (("scheme", scheme),))
        yield Job(GPT2, "hgx-a100-4", 1, (("scheme", scheme), ("accumulate", 2)))
    for machine, nodes in (("dgx-1v", 2), ("lab-flat", 3), ("dgx-a100", 4)):
        for options in ({}, {"scheme": "zero1"}, {"scheme": "naive"}, {"compression": "fp16"}):
            yield Job("resnet50", machine, nodes, (("backend", "mpi"), *options.items()))
    for machine, nodes in (
        ("gb200-nvl72", 1),
        ("gb200-nvl72", 4),
        ("gb300-nvl72", 2),
        ("mi300x-8", 1),
        ("mi300x-8", 4),
        ("mi250x-4", 2),
        ("mi325x-8", 2),
        ("mi355x-8", 2),
        ("8xrtx4090", 1),
        ("8xrtx4090-switched", 1),
        ("4xrtx4090", 1),
        ("8xl40s-pcie", 1),
        ("g5.48xlarge", 2),
        ("g6.48xlarge", 1),
        ("g4dn.metal", 2),
        ("8xrtxpro6000", 1),
        ("8xrtxpro6000-direct", 1),
        ("ncv4-4", 1),
        ("2x4a100-1nic", 1),
        ("hgx-h200", 2),
        ("dgx-b300", 2),
    ):
        yield Job("resnet50@a100-amp-b32", machine, nodes, ())
        yield Job(BERT, machine, nodes, (("scheme", next(schemes)), ("bucket_cap_mb", 10.0)))
    for order in ("never", "once", "drift:0.9:3", "drift:0.5:1"):
        for predictor in ("last", "mean", "exponential"):
            options = {"order": order, "predictor": predictor, "iterations": 6, "jitter": 0.1, "seed": 5}
            yield Job(tuple(SMALL[2].items()), "lab-flat", 3, tuple(options.items()))
    for assignment in ("initial", "unused"):
        for machine, nodes in (("dgx-1v", 2), ("loopback", 1), ("dgx-a100", 2)):
            yield Job("resnet152", machine, nodes, (("assignment", assignment),))
