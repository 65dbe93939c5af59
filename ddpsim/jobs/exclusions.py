"""Which options of a job exclude each other: one table, for jobs that are simulated and for those that are run.

An option is written by its name, which stands for any value but the default, with a value as `comm=noop`, or with those
it may have beside the default as `backend!nccl,rccl`. Also properties of a job have names here, as `fully_sharded`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ddpsim.errors import InputError
from ddpsim.options.option import default_of


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An option, and those that it cannot stand beside.

    Attributes:
        option: the one.
        refuses: the others.
        needs: one that must be given beside it; None is none.
        sentence: what is said of two, `{option}` and `{other}`; of a need where there is one.
        place: of the error, an option; None names none.
        remedy: what to do.
    """

    option: str
    refuses: tuple[str, ...] = ()
    needs: str | None = None
    sentence: str = "`{option}` and `{other}` are both given"
    place: str | None = None
    remedy: str = "keep one"


_OTHER_FIRST = "`{other}` and `{option}` are both given"
_DDP_ALONE = "compression", "drop", "order", "find_unused_parameters", "process_groups"
"""What DDP's reducer has, and no schedule in its place."""

SHARED = (
    Exclusion("order", ("assignment",)),
    Exclusion(
        "drop_buckets", needs="drop", sentence="`{option}` says nothing without `{other}`",
        remedy="name a layer, e.g. `drop` layer.3:0.5",
    ),
    Exclusion("drop_buckets=aligned", ("order", "assignment=initial")),
    Exclusion("drop_buckets=remapped", ("gradient_as_bucket_view",)),
    Exclusion("compression", ("process_groups", "comm=noop")),
    Exclusion("scheme", _DDP_ALONE),
    Exclusion("overlap", _DDP_ALONE),
    Exclusion("assignment=initial", ("find_unused_parameters",)),
)  # fmt: skip
"""Of every job."""

SIMULATED = (
    *(
        Exclusion(name, (*others, *_DDP_ALONE, "beside"), sentence=_OTHER_FIRST, place=name)
        for name, others in (("tensor_parallel", ("expert_parallel",)), ("expert_parallel", ()), ("pipeline", ()))
    ),
    Exclusion(
        "pipeline", ("expert_parallel", "accumulate", "fidelity=steps", "compiled", "input_stage", "unused"),
        place="pipeline",
    ),
    Exclusion(
        "unused", needs="find_unused_parameters", place="unused",
        sentence="is given without `{other}`: torch's DDP would wait for these gradients for ever",
        remedy="add `find_unused_parameters`",
    ),
    Exclusion("plan", ("caps", "drop_buckets=aligned"), place="plan"),
)  # fmt: skip
"""Of a job that is simulated, beside those of every job."""

SEVERAL_DEVICES = (
    "pipeline", "tensor_parallel", "expert_parallel", "scheme", "overlap", "process_groups", "compiled", "drop",
    "order", "find_unused_parameters", "beside",
)  # fmt: skip
"""What is not simulated of ranks of several devices."""

EXECUTED = (
    Exclusion(
        "local_iterations", ("drop",), remedy="leave one out: which layers stay is drawn for synchronised iterations"
    ),
    Exclusion(
        "devices",
        ("scheme", "process_groups", "backend!nccl,rccl", "drop", "compression", "stragglers", "input_stage"),
        sentence=_OTHER_FIRST, place="devices",
    ),
    Exclusion(
        "fully_sharded",
        ("backend!gloo,rccl", "assignment", "overlap", "comm", "gradient_as_bucket_view", "local_iterations"),
        sentence="torch's `fully_shard` on CPUs carries it out, which has no `{other}`", place="scheme",
        remedy="leave it out, or simulate it",
    ),
    Exclusion(
        "replicated",
        ("assignment", "overlap", "comm", "gradient_as_bucket_view", "local_iterations", "stragglers"),
        sentence="torch.nn.DataParallel has no `{other}`", place="scheme", remedy="leave it out",
    ),
)  # fmt: skip
"""Of a job that is run, beside those of every job."""

STOCK_TORCH = (
    Exclusion(
        "implementation=torch",
        ("process_groups", "assignment", "order", "drop", "compression", "scheme", "overlap"),
        sentence="`{option}` has no `{other}`", remedy="use `implementation=ddpexec`, or leave it out",
    ),
)  # fmt: skip
"""Of a job that torch's own DDP runs."""

_BARE = {
    "drop", "unused", "beside", "pipeline", "plan", "find_unused_parameters", "gradient_as_bucket_view", "compiled",
    "local_iterations",
}  # fmt: skip
"""Options whose values say no more, or more than a line holds."""
_WORDS = {"stragglers": "straggler", "caps": "bucket_cap_mb"}


def refuse_excluded(
    job: Any, rows: Sequence[Exclusion], error: type[InputError] = InputError, *, allowed: Collection[str] = ()
) -> None:
    """Raise `error` for the first row that `job` has the option of, and lacks what it needs or has what it refuses.

    Args:
        job: a dataclass of options.
        rows: of the table.
        error: raised where two contradict.
        allowed: options that are not refused here, whatever the table says.
    """
    for row in rows:
        if not is_given(job, row.option):
            continue
        missing = [] if row.needs is None or is_given(job, row.needs) else [row.needs]
        for other in (*missing, *(written(job, each) for each in row.refuses if is_given(job, each, allowed))):
            place = written(job, row.place) if row.place == "scheme" else row.place
            what = row.sentence.format(option=written(job, row.option), other=other)
            raise error(what, remedy=row.remedy) if place is None else error(what, place=place, remedy=row.remedy)


def is_given(job: Any, option: str, allowed: Collection[str] = ()) -> bool:
    """Whether `job` has an option as the table writes it."""
    name, _, value = option.partition("=")
    name, _, others = name.partition("!")
    if name in allowed:
        return False
    found = getattr(job, name)
    if value:
        return str(found) == value
    declared = {each.name: each for each in fields(job)}
    if name not in declared:
        return bool(found)
    return bool(found != default_of(declared[name])) and str(found) not in others.split(",")


def written(job: Any, option: str) -> str:
    """Return an option of `job` as people write it, with its value where that says more."""
    name = option.partition("=")[0].partition("!")[0]
    if name in _WORDS or name in _BARE:
        return _WORDS.get(name, name)
    return f"{name}={getattr(job, name)}"


def given(job: Any, options: Sequence[str]) -> Iterator[str]:
    """Yield those of `options` that `job` has, as people write them."""
    return (written(job, each) for each in options if is_given(job, each))
