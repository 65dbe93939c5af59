"""The `predict` document: read for what validation takes from it, and as the prediction that it was written of.

`load_prediction` reads a file and checks the keys that validation uses (`PredictionFile`); `read_fields` is the way
back to a `Prediction`. It is written by `Prediction.document`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.bucketing.assign import Bucket
from ddpsim.bucketing.caps import TorchCall
from ddpsim.common.documents.fields import Amount, Checked, Index, Key, Number, Text
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import InputError
from ddpsim.common.files import display_name, read_json
from ddpsim.prediction.doubts.doubt import Ends
from ddpsim.prediction.memory import Memory
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.trace.metrics import Summary

BUCKET_TIMES = ("ready_s", "launched_s", "started_s", "finished_s")
_REMEDY = "give a file made with `ddpsim predict --json`"
_ROUNDING_S = 1e-9
"""By how much a time in a file may lie before one it follows: rounding leaves as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedBucket:
    """Times of one bucket from the start of forward; the host may launch it before the device's forward."""

    index: Index
    size_bytes: Amount
    ready_s: Amount
    launched_s: Number
    started_s: Amount
    finished_s: Amount
    wire_s: Amount | None = None


def _check_order(bucket: PredictedBucket) -> PredictedBucket:
    if bucket.finished_s < bucket.started_s - _ROUNDING_S:
        what = f"its collective ends at {bucket.finished_s!r} s, before it starts at {bucket.started_s!r} s"
        raise InputError(what, place="finished_s")
    return bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCause:
    """What a step waits for, by cause."""

    cause: Text
    seconds: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStretch:
    """A stretch of the longest path, from the start of forward."""

    stream: Text
    cause: Text
    start_s: Amount
    end_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBy:
    """What one per cent more of a resource saves; less than nothing where the step then takes longer."""

    resource: Text
    saved_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFile:
    """The keys of a predict document that validation reads; DDP's overhead, being a remainder, may be negative."""

    iteration_s: Amount
    iteration_low_s: Amount = 0.0
    iteration_high_s: Amount = 0.0
    local_s: Amount
    forward_s: Amount
    backward_compute_s: Amount
    exposed_comm_s: Amount
    buffer_broadcast_s: Amount
    ddp_overhead_s: Number
    optimizer_s: Amount
    world_size: Index
    buckets: tuple[Annotated[PredictedBucket, Checked(_check_order)], ...]
    critical_path: tuple[PathCause, ...] = ()
    critical_path_spans: tuple[PathStretch, ...] = ()
    sensitivities: tuple[SavedBy, ...] = ()


def flat(document: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of `document` that hold one value: a row of a table, e.g. of a pandas DataFrame."""
    return {key: value for key, value in document.items() if not isinstance(value, dict | list)}


def describe_row(document: Mapping[str, object]) -> dict[str, object]:
    """Return a row as tables show it: flat but for memory, which a column puts in words, times of a step too."""
    times = {key: document.get(key) for key in ("exposed_skew_s", "clipping_s", "hidden_comm_cost_s", "local_s")}
    of_step = {f"step_{key}": accumulated(document) * s for key, s in times.items() if isinstance(s, float)}
    return {**flat(document), "memory": document.get("memory"), **of_step}


def leave_out_micro_batch(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row of `describe_row` without those times of a micro-batch that it has of a step."""
    twice = ("iteration_s", "iteration_low_s", "iteration_high_s", "default_iteration_s")
    once = () if accumulated(row) > 1 else ("micro_batch_s",)
    return {key: value for key, value in row.items() if f"step_{key}" not in row and key not in (*twice, *once)}


def accumulated(row: Mapping[str, object]) -> int:
    """Return how many micro-batches a row's step has."""
    count = row.get("accumulate")
    return count if isinstance(count, int) and count > 0 else 1


def load_prediction(path: str | Path) -> dict[str, object]:
    """Return the predict document in `path`.

    Raises:
        InputError: not JSON, or a key missing or of the wrong kind.
    """
    return check_prediction(read_json(path, InputError, _REMEDY, wanted="a prediction"), display_name(path))


def check_prediction(document: object, place: str) -> dict[str, object]:
    """Return `document`, all keys of it, where it is a predict document.

    Raises:
        InputError: a key missing or of the wrong kind, a negative time, a bucket that ends before it starts; `place`
            and the key are named.
    """
    if not isinstance(document, dict):
        raise InputError("not a prediction", place=place, remedy=_REMEDY)
    read_as(PredictionFile, document, place, InputError, _REMEDY)
    return document


_Buckets = tuple[tuple[tuple[int, ...], int | None], ...]
"""Parameters and limit of each bucket; the job knows names and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What a prediction that is read takes from its document as it stands."""

    topology: Text
    workload: Text
    nodes: Index
    accumulate: Index
    samples_per_s: Amount
    tokens_per_s: Amount | None
    clipping_s: Amount | None
    scaling_efficiency: Amount
    hidden_comm_cost_s: Amount | None
    notes: tuple[str, ...]
    local_s: Amount
    iteration_low_s: Amount
    iteration_high_s: Amount
    buckets: Annotated[_Buckets, Key(path=("plan", "buckets"))]
    call: Annotated[TorchCall, Key(path=("plan", "call"))]
    ends: Annotated[tuple[Ends, ...], Key(path=("ends", "of"))]


def read_fields(document: Mapping[str, Any] | str, run: SimulatedRun | None) -> dict[str, Any]:
    """Return the fields of the prediction that `document` was written of, for `Prediction(**fields)`.

    Without its run, run and plan are stand-ins that raise where one of their attributes is used.

    Raises:
        InputError: no predict document, one that lacks something, as of an earlier version, or another job's.
    """
    try:
        values = json.loads(document) if isinstance(document, str) else document
        check_prediction(values, "document")
        read = read_as(_Figures, values, "document", InputError, _AGAIN)
        if values["memory"] is not None:
            Memory.from_document(values["memory"])  # raises now, rather than where the memory is used
        summary = read_as(Summary, values | values["iterations"], "document", InputError, _AGAIN)
        plan = None if run is None else _restore_plan(read.buckets, read.call, run.workload.parameters)
        if run is not None and plan is not None:
            _check_job(values, run, plan)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        wrong = f"lacks {error}" if isinstance(error, KeyError) else "is no prediction"
        raise InputError(f"the document {wrong}", place="document", remedy=_AGAIN) from error
    return {
        "run": run or _Lacking("run"),
        "summary": summary,
        "plan": plan or _Lacking("plan"),
        "local_s": read.local_s,
        "low_s": read.iteration_low_s,
        "high_s": read.iteration_high_s,
        "ends": read.ends,
        "hidden_comm_cost_s": read.hidden_comm_cost_s,
        "read": values,
    }


_AGAIN = "give what `Prediction.document()` of this version returns, with the job that it was made of, or none"


def _check_job(values: Mapping[str, Any], run: SimulatedRun, plan: BucketPlan) -> None:
    """Refuse the document of another job.

    Raises:
        InputError: names what it has of another.
    """
    options, placement = run.options, run.placement
    own = {
        "workload": run.workload.name,
        "nodes": placement.nodes,
        "world_size": placement.world_size,
        "scheme": options.scheme,
        "accumulate": options.accumulate,
        "plan_fingerprint": plan.fingerprint(),
    }
    provenance = {
        "topology_fingerprint": placement.topology.fingerprint(),
        "seed": options.seed,
        "fidelity": options.fidelity,
        "compression": options.compression,
        "order": options.order,
        "drop": dict(options.drop),
    }
    for document, known in ((values, own), (values["provenance"], provenance)):
        for key, value in known.items():
            if document[key] != value:
                what = f"the document is another job's: its `{key}` is {document[key]!r}, the job's {value!r}"
                raise InputError(what, place="job", remedy="give the job that it was made of, or none")


def _restore_plan(buckets: _Buckets, call: TorchCall, parameters: Sequence[Parameter]) -> BucketPlan:
    whole = (
        Bucket(indices, sum(parameters[index].size_bytes for index in indices), limit) for indices, limit in buckets
    )
    return BucketPlan(tuple(whole), tuple(parameter.name for parameter in parameters), call)


@dataclass(frozen=True)
class _Lacking:
    """Stands for what a prediction lacks that was read without its job, and says so where it is asked for."""

    what: str

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        what = f"the prediction was read without its job, and has no {self.what}: its `{name}` is not known"
        raise InputError(what, place="job", remedy="read it with its job: `Prediction.from_document(document, job)`")
