"""Which options exclude each other: one table, read by both packages, the command line and the documentation.

Each command checks the rows of its name in `TABLE` with `refuse_excluded`. In a row an option is a name, which means
any value but the default; `comm=noop` means that value; `backend!nccl,rccl` any value but the default and those listed.
Properties of a job (`fully_sharded`) and arguments of a command outside the job (`plan`, `step`) have names here, too.

Not in the table: options of one scheme (`ddpsim.schedules.named` checks them), and values that contradict each
other by arithmetic, as stages that do not divide ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any

from ddpsim.common.errors import InputError
from ddpsim.common.options.option import default_of


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A row of the table: an option, those that exclude it, and one that it needs."""

    option: str
    refuses: tuple[str, ...] = ()
    needs: str | None = None
    sentence: str = "`{option}` and `{other}` are both given"
    """The error's message: `{option}`, and `{other}`, excluded or missing, or `{name}`, the other without its value."""
    place: str | None = None
    """The option at which the error stands; None is none."""
    remedy: str = "keep one"
    """What to do; may hold `{name}`."""


_OTHER_FIRST = "`{other}` and `{option}` are both given"
_BOTH_NAMED = "`{option}` and `{name}` are both given"
_PLANNED_TOO = "it and a plan are both given"
_DDP_ALONE = "compression", "drop", "order", "find_unused_parameters", "process_groups"
"""Options of DDP's reducer, which a schedule in its place does not have."""

_OF_COUNTED = (
    "optimizer", "one_gpu_step", "pace_of", "batch_size", "clip_gradients", "sequence_length", "without",
    "activation_checkpointing",
)  # fmt: skip
"""Options of a model whose operations are counted; a capture that is carried to a GPU has none of them."""

TABLE: Mapping[str, tuple[Exclusion, ...]] = {
    "every job": (
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
    ),
    "predictions": (
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
    ),
    "ranks of several devices": (
        Exclusion(
            "devices",
            ("pipeline", "tensor_parallel", "expert_parallel", "scheme", "overlap", "process_groups", "compiled",
             "drop", "order", "find_unused_parameters", "beside"),
            sentence="{option}, with which it is not simulated", remedy="leave it out",
        ),
    ),
    "pipelines of one stage": (Exclusion("pipeline", ("accumulate",), place="pipeline"),),
    "plans": (Exclusion("plan", ("caps", "drop_buckets=aligned"), place="plan"),),
    "runs": (
        Exclusion(
            "local_iterations", ("drop",),
            remedy="leave one out: which layers stay is drawn for synchronised iterations",
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
    ),
    "runs by torch's DDP": (
        Exclusion(
            "implementation=torch",
            ("process_groups", "assignment", "order", "drop", "compression", "scheme", "overlap"),
            sentence="`{option}` has no `{other}`", remedy="use `implementation=ddpexec`, or leave it out",
        ),
    ),
    "bucket caps": (Exclusion("bucket_cap_mb_list", ("bucket_cap_mb", "first_bucket_mb"), sentence=_OTHER_FIRST),),
    "plan files": (
        Exclusion("plan", ("bucket_cap_mb", "bucket_cap_mb_list"), sentence=_OTHER_FIRST),
        Exclusion("plan", ("first_bucket_mb", "assignment")),
    ),
    "pipelines": (
        Exclusion(
            "order=interleaved", needs="stages_per_rank", sentence="`{option}` and `{other}` do not go together",
            place="stages_per_rank", remedy="interleaved takes 2 or more stages a rank, other orders one",
        ),
        Exclusion(
            "stages_per_rank", needs="order=interleaved", sentence="`{other}` and `{option}` do not go together",
            place="stages_per_rank", remedy="interleaved takes 2 or more stages a rank, other orders one",
        ),
        Exclusion(
            "order=pipedream", ("gradients=ddp",), place="gradients",
            sentence="`{option}` and `{other}` are both given, and without a flush no backward is a step's last",
            remedy="use `gradients=after`, or another order",
        ),
        Exclusion(
            "stages", ("tensor_ranks",), sentence="`stages` and `tensor_ranks` are both above 1", place="stages",
            remedy="give one of them",
        ),
    ),
    "cut layers": (
        Exclusion(
            "gradients=ddp", ("tensor_ranks",), place="gradients",
            remedy="use `ddpsim predict`, which takes `tensor_parallel`",
        ),
    ),
    "fully_shard": (
        Exclusion(
            "host_update", needs="offload", sentence="`host_update` says nothing without `offload`",
            place="fully_shard", remedy="e.g. offload,host_update=80ms",
        ),
    ),
    "tables": (Exclusion("csv", ("as_json",), sentence="`csv` and `as_json` are both given", place="csv"),),
    "workers": (Exclusion("workers", ("scheduler",), sentence="`workers` and `scheduler` are both given"),),
    "predict --first": (
        Exclusion(
            "first", ("drop", "beside"), place="first",
            sentence="`first` and `{name}` are both given, whose iterations are never alike",
        ),
        Exclusion(
            "first", ("tensor_parallel", "expert_parallel", "pipeline"), place="first",
            sentence="`first` and `{name}` are both given, of which only DDP's construction is known",
        ),
    ),
    "predict --chakra": (
        Exclusion(
            "chakra", ("tensor_parallel", "expert_parallel", "pipeline"), place="chakra",
            sentence="`chakra` and `{name}` are both given, whose groups of ranks that file does not name yet",
        ),
    ),
    "plan": (
        *(
            Exclusion(
                name, needs="search", sentence="says nothing without `{name}`", place=name,
                remedy="add `search`, or leave it out",
            )
            for name in ("micro_batch_size", "global_batch_size")
        ),
        Exclusion(
            "search", ("plot", "report"), sentence=_BOTH_NAMED, place="search",
            remedy="leave one out; --json has all that a search finds",
        ),
    ),
    "plan --search": (Exclusion("global_batch_size", ("accumulate",), place="global_batch_size"),),
    "plan --schemes": (
        Exclusion(
            "schemes", ("out", "plot", "report", "bucket_cap_mb", "plan"), sentence=_BOTH_NAMED, place="schemes",
            remedy="leave one out; `ddpsim compare` draws and reports schemes",
        ),
    ),
    "plan --bucket-cap-mb": (
        Exclusion(
            "first_bucket_mb", needs="bucket_cap_mb", sentence="says nothing without `{name}`", place="first_bucket_mb",
            remedy="add e.g. `bucket_cap_mb=5,25`, or leave it out",
        ),
    ),
    "compare": (
        Exclusion("deadline", ("samples_per_second",)),
        Exclusion(
            "deadline", needs="samples_per_epoch", sentence="says nothing without the samples to train on",
            place="deadline", remedy="add e.g. `samples_per_epoch=1281167`",
        ),
    ),
    "collective": (Exclusion("measured", ("begin", "end", "factor"), sentence=_OTHER_FIRST, place="measured"),),
    "explain": (Exclusion("topology", ("topo",), place="topo"),),
    "run --step": (
        Exclusion(
            "step", ("batch_size", "accumulate", "local_iterations"), sentence="`{name}` and `step` are both given",
            place="step", remedy="the step has its own batch and steps; drop `{name}`",
        ),
    ),
    "runs by a schedule": (
        Exclusion("scheduled", ("step",), place="scheme", remedy="a step has its own optimizer; drop one"),
    ),
    "runs by torch's schemes": (
        Exclusion("fully_sharded", ("plan",), sentence=_PLANNED_TOO, place="scheme", remedy="its units are no buckets"),
        Exclusion(
            "replicated", ("plan",), sentence=_PLANNED_TOO, place="scheme", remedy="its messages are torch's own"
        ),
    ),
    "run --pipeline": (
        Exclusion("pipeline", ("step",), place="pipeline", remedy="run a model or a workload"),
        Exclusion("pipeline", ("plan",), place="pipeline", remedy="leave `plan` out"),
        Exclusion(
            "pipeline", ("backend=mpi",), place="backend=mpi", remedy="use gloo or nccl",
            sentence="torch's pipelines batch their sends, which the group over MPI does not",
        ),
    ),
    "run --interleave": (
        Exclusion(
            "interleave",
            ("step", "pipeline", "fully_sharded", "replicated", "served", "drop", "local_iterations", "input_stage"),
            place="interleave", remedy="leave one out",
        ),
    ),
    "wrapped modules": (
        Exclusion(
            "remap_dropped", needs="drop", sentence="remap_dropped=True and no drop are both given", remedy="give drop"
        ),
        Exclusion(
            "remap_dropped", ("gradient_as_bucket_view",), sentence="{option}=True and {other}=True are both given",
            remedy="leave one out: gradients stay where they are",
        ),
        Exclusion(
            "drop", ("static_graph",), sentence="{option} and {other}=True are both given",
            remedy="leave static_graph out: what is left out changes",
        ),
    ),
    "modules wrapped by a scheme": (
        Exclusion(
            "scheme", needs="make_optimizer",
            sentence="{option} and no {other} are given: a scheme says when parameters are updated",
            remedy="give e.g. make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
        ),
        *(
            Exclusion(
                option, needs="scheme", sentence="{option} is given and no {other}, which alone has it",
                remedy="give scheme, e.g. scheme='ddp'",
            )
            for option in ("make_optimizer", "overlap", "every", "accumulate", "learn")
        ),
        Exclusion(
            "scheme", ("gradient_as_bucket_view", "batched_grad_copy"), remedy="leave one out",
            sentence="{option} and {other} are both given: a scheme's messages have memory of their own",
        ),
        Exclusion(
            "scheme", ("skip_all_reduce_unused_params", "drop", "remap_dropped"), remedy="leave one out",
            sentence="{option} and {other} are both given: a schedule's messages are the same in every iteration",
        ),
        Exclusion(
            "scheme", ("rebuild", "predictor", "consensus"), remedy="leave one out; learn=3 makes buckets anew, once",
            sentence="{option} and {other} are both given: a schedule is made once",
        ),
    ),
    "modules wrapped with a plan": (
        Exclusion(
            "plan", ("bucket_cap_mb", "first_bucket_mb", "bucket_cap_mb_list"),
            sentence="a plan and {other} are both given",
        ),
    ),
    "estimate": (
        Exclusion(
            "all_",
            ("jitter", "gpu", "gpu_file", "memory_bandwidth", "peak", "memory", "multiprocessors", "precision",
             *_OF_COUNTED),
            sentence=_BOTH_NAMED, place="estimate",
        ),
        Exclusion("from_", _OF_COUNTED, sentence=_BOTH_NAMED, place="estimate"),
        Exclusion(
            "accumulate", needs="one_gpu_step", sentence="says nothing without `{name}`", place="accumulate",
            remedy="add the time of such a step, or leave it out",
        ),
        Exclusion(
            "clip_gradients", needs="optimizer", sentence="no optimizer is named", place="clip_gradients",
            remedy="add e.g. `optimizer=adamw-foreach`",
        ),
        Exclusion("pace_of", ("one_gpu_step",), sentence=_BOTH_NAMED, place="estimate"),
        Exclusion("step", ("sequence_length",), sentence=_BOTH_NAMED, place="estimate"),
        Exclusion("gpu", ("gpu_file",), sentence=_BOTH_NAMED, place="estimate"),
    ),
    "capture": (
        Exclusion(
            "step", ("precision", "device"), sentence="`{name}` and `step` are both given",
            remedy="the step chooses its own; drop `{name}`",
        ),
    ),
    "netlab": (Exclusion("topology", ("ranks", "rate", "delay"), place="netlab"),),
}  # fmt: skip
"""The rows by the command or kind of job that they hold for."""

_OF_SCHEME = ("fully_sharded", "replicated", "scheduled", "served")
"""Properties of a scheme, which errors name by the scheme."""
_BARE = {"plan", "local_iterations"}
"""Options that errors name without their value, which says nothing or is longer than a line."""
_WORDS = {"stragglers": "straggler", "caps": "bucket_cap_mb"} | dict.fromkeys(_OF_SCHEME, "scheme")


def refuse_excluded(
    job: Any,
    of: str,
    error: type[InputError] = InputError,
    *,
    allowed: Collection[str] = (),
    beside: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Raise `error` for the first row whose option is set while one that it needs is not, or one it excludes is.

    Args:
        job: a dataclass of options; None where `beside` has all.
        of: key of the rows in the table.
        error: the class to raise.
        allowed: options that are not refused here, whatever the table says.
        beside: arguments outside the job, by name; a false value is one that is not set.
    """
    for row in TABLE[of]:
        if not is_given(job, row.option, beside=beside):
            continue
        missing = [] if row.needs is None or is_given(job, row.needs, beside=beside) else [row.needs]
        for other in (*missing, *(each for each in row.refuses if is_given(job, each, allowed, beside))):
            words = {
                "option": written(job, row.option, beside), "other": written(job, other, beside),
                "name": _name(other),
            }  # fmt: skip
            place = written(job, row.place) if row.place == "scheme" else row.place
            what, remedy = row.sentence.format(**words), row.remedy.format(**words)
            raise error(what, remedy=remedy) if place is None else error(what, place=place, remedy=remedy)


def is_given(
    job: Any, option: str, allowed: Collection[str] = (), beside: Mapping[str, object] = MappingProxyType({})
) -> bool:
    """Whether an option, written as in the table, is set in `job` or `beside`."""
    name, _, value = option.partition("=")
    name, _, others = name.partition("!")
    if name in allowed:
        return False
    if name in beside:
        return bool(beside[name])
    present = getattr(job, name)
    if value:
        return str(present) == value
    declared = {each.name: each for each in fields(job)}
    if name not in declared:
        return bool(present)
    return bool(present != default_of(declared[name])) and str(present) not in others.split(",")


def written(job: Any, option: str, beside: Collection[str] = ()) -> str:
    """Return an option of `job` as people write it, `comm=noop`, or its name alone where the value adds nothing."""
    name = _name(option)
    if name in beside or name in _BARE:
        return name
    shown, value = _WORDS.get(name, name), getattr(job, _WORDS.get(name, name) if name in _OF_SCHEME else name)
    if value is None or isinstance(value, bool | Mapping) or is_dataclass(value):
        return shown
    values = value if isinstance(value, tuple) else (value,)
    return f"{shown}={','.join(f'{each:g}' if isinstance(each, float) else str(each) for each in values)}"


def _name(option: str) -> str:
    return option.partition("=")[0].partition("!")[0]


def given(job: Any, options: Sequence[str]) -> Iterator[str]:
    """Yield those of `options` that are set in `job`, as people write them."""
    return (written(job, each) for each in options if is_given(job, each))
