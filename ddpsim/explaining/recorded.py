"""Traces of `ddpexec` and of the simulator as ranks seen: records say all but loading, which spans tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.caps import TorchCall
from ddpsim.common.errors import InputError, TraceError, WorkloadError
from ddpsim.explaining.basis import PredictionBasis
from ddpsim.explaining.ranks import UNPREDICTED, TracedRank
from ddpsim.trace.json.reading import read_rank
from ddpsim.trace.metrics import complete_parts, part_fields, seconds_by_part
from ddpsim.trace.records import HOST, OPTIMIZER, Iteration, Span, Trace
from ddpsim.workload import Workload

_ALSO = {"scheme": "ddp", "overlap": "on", "accumulate": 1, "no_sync_every": 1, "compression": "none", "comm": "real"}
"""Options of a run, and what they are where the traced configuration is stock DDP's: `validate` judges the others."""


_CALL = "torch"
"""What the call of torch's constructor is among the options of a run."""


def read_recorded_rank(path: str | Path, shapes: Workload | None = None, *, lead: bool = False) -> TracedRank:
    """Return what a rank's file of `ddpexec` or `ddpsim` says.

    Args:
        path: the file.
        shapes: the workload that was run, where known.
        lead: whether a prediction is to rest on it.

    Raises:
        TraceError: truncated or malformed.
    """
    rank, trace = read_rank(path)
    seen = rank_from_trace(trace, rank, str(path))
    if not lead:
        return seen
    try:
        return replace(seen, made_by=_basis(seen, trace, rank, shapes))
    except InputError as error:
        return replace(seen, notes=(*seen.notes, f"{UNPREDICTED}{error}"))


def _basis(seen: TracedRank, trace: Trace, rank: int, shapes: Workload | None) -> PredictionBasis:
    """Return what a prediction of the recorded run rests on: the workload that was run, and its last buckets.

    Raises:
        WorkloadError: no workload is given, or one of another model.
        TraceError: a run that is not stock DDP's.
    """
    if shapes is None:
        what = "a recorded run holds no step without DDP"
        remedy = "give the workload that it ran, as `python -m ddpexec capture` writes it: `shapes=capture.json`"
        raise WorkloadError(what, place="shapes", remedy=remedy)
    for name, usual in _ALSO.items():
        if seen.options.get(name, usual) != usual:
            what = f"the run has {name}={seen.options[name]}"
            raise TraceError(what, place=seen.place, remedy="hold a prediction against it with `ddpsim validate`")
    last = next((it for it in reversed(trace.of_rank(rank)) if it.buckets), None)
    groups = () if last is None else tuple(bucket.parameters for bucket in last.buckets)
    held = {index for group in groups for index in group}
    if groups and held != set(range(len(shapes.parameters))):
        what = f"{shapes.name} has {len(shapes.parameters)} parameters, the traced buckets hold {len(held)}"
        raise WorkloadError(what, place="shapes", remedy="give the workload that was run")
    order = tuple(index for group in groups for index in group)
    input_s = median(it.input_s or 0.0 for it in seen.iterations)
    broadcasts = seen.options.get("broadcast_buffers", True) is not False
    return PredictionBasis(shapes, groups, order, {}, 0.0, broadcasts, input_s, caps=run_caps(seen.options))


def run_caps(options: Mapping[str, object]) -> BucketCaps | None:
    """Return the caps with which a run says that it was run; None where it does not, or was given a plan of its own."""
    listed, call = options.get("bucket_cap_mb_list"), options.get(_CALL)
    if isinstance(listed, list | tuple) and all(isinstance(cap, int | float) for cap in listed):
        return BucketCaps(bucket_cap_mb_list=tuple(listed))
    if "bucket_cap_mb" in options:
        named = ("bucket_cap_mb", "first_bucket_mb")
        values = {name: float(value) for name in named if isinstance(value := options.get(name), int | float)}
        return BucketCaps(bucket_cap_mb=values.get("bucket_cap_mb"), first_bucket_mb=values.get("first_bucket_mb"))
    with suppress(InputError):
        return TorchCall.parse(call).caps if isinstance(call, str) else None
    return None


def _options(provenance: Mapping[str, object]) -> dict[str, object]:
    """Return how a run was made: its options, torch's call that makes its plan, which steps were stamped."""
    options, plan = provenance.get("options"), provenance.get("plan")
    found = dict(options) if isinstance(options, Mapping) else {}
    if "every" in provenance:
        # A loop that was traced as it is had a constructor's call of its own, which no plan tells.
        return {**found, "every": provenance["every"]}
    return {**found, _CALL: plan["torch"]} if isinstance(plan, Mapping) and "torch" in plan else found


def rank_from_trace(trace: Trace, rank: int, place: str) -> TracedRank:
    """Return what `trace` says of `rank`."""
    iterations, said = trace.of_rank(rank), trace.provenance.get("compute_device")
    updates = [span for span in trace.spans if span.rank == rank and span.stream == HOST and span.name == OPTIMIZER]
    updates.sort(key=lambda span: span.start_s)
    return TracedRank(
        rank=rank,
        world_size=trace.world_size,
        backend=trace.backend,
        # Without the run's word, what its backend is for.
        device=said if isinstance(said, str) else "cpu" if trace.backend in ("gloo", "mpi") else "GPU",
        place=place,
        kind="ddpsim",
        scheme="ddp",
        iterations=tuple(_with_loading(it, updates) for it in iterations),
        clock="rank 0's",
        options=_options(trace.provenance),
        gpus=count if isinstance(count := trace.provenance.get("local_world_size"), int) else 0,
    )


def _with_loading(it: Iteration, updates: Sequence[Span]) -> Iteration:
    """Return an iteration with what lies between its update and its end as its `input_s`, and its own work by phase."""
    told = it.input_s is not None
    updated = [] if told else [span.end_s for span in updates if it.start_s <= span.start_s < it.end_s]
    gap_s = max(0.0, it.end_s - max(updated)) if updated else 0.0
    input_s = it.input_s if it.input_s is not None else min(gap_s, max(0.0, it.ddp_overhead_s))
    own = {
        "forward": it.forward_s,
        "backward": it.backward_compute_s,
        "optimizer": it.optimizer_s,
        "input": input_s,
    }
    parts = complete_parts({**seconds_by_part(it), "input_s": input_s}, it.iteration_s)
    return replace(it, **part_fields(parts), held_up_s=0.0, layer_comm_s=None, stepped=True, others=(), host_s=own)
