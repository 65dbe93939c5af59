"""Every column of the tables of results, declared once: name, title, meaning, and how its cells are written.

A column has the name of its key in the JSON document, or a name of its own where its cell combines several keys. To add
a column: a `DeclaredColumn` in `_DECLARED`, and its name in `SHOWN` under each command that shows it by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddpsim.common.tables.cells import GBPS, format_band, format_short, mib, ms
from ddpsim.common.tables.table import Record
from ddpsim.common.units import GIB, format_bandwidth, format_time


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column, whatever table it stands in."""

    name: str
    what: str
    """What it is, in a sentence."""
    title: str | None = None
    """Its heading where that is not the name, without the unit, which is the end of the name."""
    heading: str | None = None
    """The whole heading, where name and unit do not make it; `{currency}` in it is that of the prices."""
    read: Callable[[Record], object] | None = None
    """Returns a row's cell; None writes the key's value by its unit, with its band where bands are shown."""
    form: Callable[[Any], str | None] | None = None
    """Writes a value, where its unit does not determine that."""
    signed: bool = False
    """Whether a share has its sign: an error, not a part of a whole."""
    words: bool = False
    """Whether cells begin at the left."""
    place: bool = False
    """Whether it identifies a row; a table that is too wide has it again in each of its parts."""


@dataclass(frozen=True, slots=True)
class ShownColumns:
    """The columns that a table has by default, without those that are empty in all rows."""

    names: tuple[str, ...]
    differing: frozenset[str] = frozenset()
    """Of these, those that are left out where all rows have the same value."""
    plain: frozenset[str] = frozenset()
    """Of these, those written by their unit whatever is declared: steps to hundredths, where rows differ by little."""
    digits: int = 1
    """Decimals of a per cent."""


def _number(record: Record, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None


def _band(record: Record, name: str, low: str, high: str) -> tuple[float, float, float] | None:
    middle, *ends = (_number(record, each) for each in (name, low, high))
    if middle is None or ends[0] is None or ends[1] is None:
        return None
    return middle, ends[0], ends[1]


def _step(record: Record) -> str | None:
    """Return a step with its band to three digits; to hundredths where it has none."""
    band = _band(record, "step_s", "step_low_s", "step_high_s")
    return ms(_number(record, "step_s")) if band is None else format_band(band, 1e3)


def _micro_batch(record: Record) -> str | None:
    seconds, count = _number(record, "micro_batch_s"), record.get("accumulate")
    return None if seconds is None or count in (None, 1) else f"{format_short(seconds * 1e3)} of {count}"


def _epoch(record: Record) -> str | None:
    band = _band(record, "epoch_s", "epoch_low_s", "epoch_high_s")
    if band is None:
        return None
    # Chosen by hand, for digits that are read at a glance.
    unit, seconds = ("h", 3600.0) if band[0] >= 3 * 3600 else ("min", 60.0)
    return f"{format_band(band, 1 / seconds)} {unit}"


def _cost(name: str) -> Callable[[Record], str | None]:
    def read(record: Record) -> str | None:
        band = _band(record, name, f"{name}_low", f"{name}_high")
        return None if band is None else format_band(band)

    return read


def _formatted(name: str, form: Callable[[float], str]) -> Callable[[Record], str | None]:
    def read(record: Record) -> str | None:
        return None if (value := _number(record, name)) is None else form(value)

    return read


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _gpus(record: Record) -> str | None:
    nodes, ranks, each = (_number(record, name) for name in ("nodes", "world_size", "gpus_per_node"))
    if not nodes or (ranks is None and each is None):
        return None
    return f"{nodes:.0f} x {(ranks or 0.0) / nodes if each is None else each:.0f}"


def _pace(record: Record) -> str | None:
    marks = (("est.", record.get("estimated")), ("kept", record.get("pace_kept")))
    device = record.get("compute_device")
    return None if device is None else ", ".join([str(device), *(mark for mark, holds in marks if holds)])


def _memory(record: Record) -> str:
    """Return what a rank needs and its GPU has, and whether it fits where that is in doubt."""
    memory = record.get("memory")
    if not isinstance(memory, Mapping):
        return ""
    known = memory["activations_bytes"] is not None
    size = f"{'' if known else '> '}{memory['alive_bytes'] / GIB:.1f}"
    if memory["capacity_bytes"] is None:
        return size
    mark = {False: " does NOT fit", None: " may not fit" if known else ""}.get(memory["fits"], "")
    return f"{size}/{memory['capacity_bytes'] / GIB:.1f}".removesuffix(".0") + mark


def _constant_band(record: Record) -> str | None:
    low, high = (_number(record, end) for end in ("low", "high"))
    return None if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _pays_below(record: Record) -> str | None:
    band = _band(record, "rate_Bps", "rate_low_Bps", "rate_high_Bps")
    if band is None:
        return None if record.get("why") is None else str(record["why"])
    return format_band(band, GBPS)


_DECLARED = (
    DeclaredColumn("machine", "The machine, as it was asked for.", words=True, place=True,
                   read=lambda record: record.get("machine", record.get("topology"))),
    DeclaredColumn("topology", "The machine, by the name in its file.", "machine", words=True, place=True),
    DeclaredColumn("model", "The workload, as it was asked for.", words=True, place=True),
    DeclaredColumn("workload", "The workload, by the name in its file.", words=True, place=True),
    DeclaredColumn("nodes", "How many nodes take part.", place=True),
    DeclaredColumn("world_size", "How many GPUs take part, a rank each.", "ranks", place=True),
    DeclaredColumn("gpus_per_node", "GPUs of a node that take part.", "GPUs a node", place=True),
    DeclaredColumn("gpus", "Nodes, and GPUs of each.", heading="GPUs", read=_gpus, place=True),
    DeclaredColumn("precision", "Numbers that the step computes in: `fp32`, `amp`.", place=True),
    DeclaredColumn("batch_size", "Samples of a rank in a micro-batch.", "batch", place=True),
    DeclaredColumn("cap", "The bucket cap, or `default` for torch's.", heading="cap MiB", place=True),
    DeclaredColumn("bucket_cap_mb", "The bucket cap; none is torch's default.", "bucket cap MiB", place=True),
    DeclaredColumn("scheme", "How ranks reduce: `ddp`, `zero1`, `fsdp2`.", words=True, place=True),
    DeclaredColumn("tensor_parallel", "Consecutive ranks that share each layer.", heading="TP", place=True),
    DeclaredColumn("stages", "The pipeline's order and its stages.", words=True, place=True),
    DeclaredColumn("data_parallel", "Ranks, or groups of them, with data of their own.", heading="DP", place=True),
    DeclaredColumn("expert_parallel", "Ranks that share a mixture's experts.", heading="EP", place=True),
    DeclaredColumn("expert_data_parallel", "Ranks with data of their own for each expert.", heading="DP of experts"),
    DeclaredColumn("layer_messages", "Messages of a micro-batch between ranks that share layers or experts."),
    DeclaredColumn("layer_bytes", "Bytes of those messages.", "messages of layers"),
    DeclaredColumn("micro_batch_size", "Samples that a rank, or ranks that share layers, compute at once.",
                   "micro-batch size", place=True),
    DeclaredColumn("accumulate", "Micro-batches of a step.", "micro-batches", place=True),
    DeclaredColumn("sync", "Which micro-batches reduce gradients.", words=True, place=True),
    DeclaredColumn("link", "The link whose rate was set.", "link set", words=True, place=True),
    DeclaredColumn("link_rate_Bps", "The rate that was set.", place=True),
    DeclaredColumn("rate", "The rate that was set, and of which link where that is no NIC.", words=True,
                   place=True),
    DeclaredColumn("compute_device", "The GPU whose pace the step has.", "GPU", words=True, place=True),
    DeclaredColumn("pace", "The same, whether its pace is estimated, and whether it is kept on other GPUs.",
                   read=_pace, words=True, place=True),
    DeclaredColumn("other_pace", "The GPU whose pace the step has, where the machine's own is another.",
                   heading="pace kept", words=True, place=True,
                   read=lambda record: record.get("compute_device") if record.get("pace_kept") else None),
    DeclaredColumn("estimated", "Whether the pace is estimated, not measured."),
    DeclaredColumn("pace_kept", "Whether the machine's own GPU is another."),
    DeclaredColumn("buckets", "The advised bucket cap, and how many buckets that makes.", words=True),
    DeclaredColumn("step_s", "Time between two steps of the optimizer, with its 80 % band.", read=_step),
    DeclaredColumn("iteration_s", "Time of a micro-batch, which is a step where that has one."),
    DeclaredColumn("micro_batch_s", "The same of a step of several, and how many it has.", read=_micro_batch,
                   heading="micro-batch ms"),
    DeclaredColumn("iteration_statistic", "What that time is of many.", "statistic", words=True),
    DeclaredColumn("samples_per_s", "Samples a second of all ranks.", read=_formatted("samples_per_s", _count)),
    DeclaredColumn("tokens_per_s", "Tokens a second of all ranks.", read=_formatted("tokens_per_s", _count)),
    DeclaredColumn("scaling_efficiency", "Share of one GPU's speed without DDP that each keeps.", "eff."),
    *(
        DeclaredColumn(f"{step}{name}", f"{what}{of}.", title)
        for step, of in (("step_", ", in a step"), ("", ", in a micro-batch"))
        for name, title, what in (
            ("input_s", "input", "Wait for the batch"),
            ("forward_s", "forward", "Forward"),
            ("backward_compute_s", "backward", "Backward without waiting for communication"),
            ("layer_comm_s", "layers' comm.", "Wait for messages between ranks that share layers"),
            ("exposed_comm_s", "exposed", "Wait for communication that nothing hides"),
            ("buffer_broadcast_s", "broadcast", "Broadcast of buffers"),
            ("ddp_overhead_s", "DDP", "What else DDP costs"),
            ("optimizer_s", "optimizer", "The optimizer's step"),
            ("exposed_skew_s", "skew", "Wait for slower ranks"),
            ("clipping_s", "clipping", "Clipping of gradients"),
            ("hidden_comm_cost_s", "cost of hidden communication", "What hidden communication costs computation"),
            ("local_s", "without DDP", "All of one rank without DDP"),
        )
    ),
    DeclaredColumn("overlap_ratio", "Share of communication that computation hides.", "hidden"),
    DeclaredColumn("exposed_share", "Share of a step that waits for communication.", "exposed"),
    DeclaredColumn("default_iteration_s", "A micro-batch with torch's default.", "default's iteration"),
    DeclaredColumn("default_step_s", "A step with torch's default.", "default's step"),
    DeclaredColumn("gain", "Share of the default's step that is saved; of a scheme, of DDP's."),
    DeclaredColumn("gain_over_plain_ddp", "Share of plain DDP's step that is saved.", "gain"),
    DeclaredColumn("gain_from_hidden_comm", "How much of the gain rests on what communication costs computation."),
    DeclaredColumn("keep_default", "Whether torch's default stays.", "default kept"),
    DeclaredColumn("worth_it", "Whether the scheme is worth leaving DDP for."),
    DeclaredColumn("best", "Whether it is what is advised."),
    DeclaredColumn("trial", "What is worth one trial run beside the advice.", words=True),
    DeclaredColumn("torch", "The constructor call to paste.", "paste", words=True),
    DeclaredColumn("plan_fingerprint", "Fingerprint of the buckets.", "fingerprint", words=True),
    DeclaredColumn("bucket_memory_bytes", "Bytes of buckets beside the gradients."),
    DeclaredColumn("memory", "What a rank needs at its peak and its GPU has, and whether it fits.", read=_memory,
                   heading="peak GiB"),
    DeclaredColumn("fits", "Whether it fits the GPU's memory."),
    DeclaredColumn("binds", "What the step waits for most: GPU, host, communication.", "bound", words=True),
    DeclaredColumn("bound_by", "What the step waits for most, by one name.", words=True),
    DeclaredColumn("bound_beside", "What binds as well.", words=True),
    DeclaredColumn("binding_link", "The link that collectives fill longest.", "link", words=True),
    DeclaredColumn("binding_link_share", "Share of the collectives' time in which it is full.", "link full"),
    DeclaredColumn("lost_together_s", "How much shorter the step were without both that bind."),
    DeclaredColumn("host_bound", "Whether launching costs more than a gain is worth."),
    DeclaredColumn("host_cost_s", "How much shorter the step were on a host that takes no time."),
    DeclaredColumn("cost_per_node_hour", "What an hour of a node costs.", heading="{currency}/h of a node"),
    DeclaredColumn("cost_per_hour", "What an hour of all nodes costs.", heading="{currency}/h",
                   read=_formatted("cost_per_hour", format_short)),
    DeclaredColumn("cost_per_million_samples", "What a million samples cost, with the step's band.",
                   heading="{currency} a million samples", read=_cost("cost_per_million_samples")),
    DeclaredColumn("epoch_s", "Time of an epoch, with the step's band.", heading="an epoch", read=_epoch),
    DeclaredColumn("cost_per_epoch", "What an epoch costs, with the step's band.", read=_cost("cost_per_epoch"),
                   heading="{currency} an epoch"),
    DeclaredColumn("cost_currency", "The currency of its price.", "currency", words=True),
    DeclaredColumn("cost_date", "The date of its price.", "price of", words=True),
    DeclaredColumn("pareto", "Marks what nothing beats in both cost and speed.", heading="Pareto", words=True,
                   read=lambda row: None if row.get("cost_per_hour") is None else "*" if row.get("pareto") else ""),
    DeclaredColumn("ratio", "Plain bytes on a link over those of the scheme.", heading="ratio",
                   read=_formatted("ratio", "{:.1f}".format)),
    DeclaredColumn("plain_s", "A step without the scheme."),
    DeclaredColumn("pays_below", "The rate of each NIC below which the scheme is faster, with its 80 % band.",
                   read=_pays_below, heading="faster below Gb/s", words=True),
    DeclaredColumn("why", "Why there is no such rate, in words.", words=True),
    DeclaredColumn("measured", "Whether what encoding costs was measured; else it is a prior.", "cost measured"),
)  # fmt: skip

COLUMNS: Mapping[str, DeclaredColumn] = {each.name: each for each in _DECLARED}
"""Columns of rows that are predictions, by name, in the order of the reference."""

_OF_A_STEP = (
    DeclaredColumn("part", "A part of the step.", words=True),
    DeclaredColumn("time_s", "How long it takes.", heading="ms"),
    DeclaredColumn("share_of_step", "Share of the step, of an error with its sign.", "of the step", signed=True),
    DeclaredColumn("index", "Number of a bucket, in launch order.", "bucket"),
    DeclaredColumn("parameters", "How many parameters share it.",
                   form=lambda found: str(len(found) if isinstance(found, tuple | list) else found)),
    DeclaredColumn("size_bytes", "Bytes of its gradients.", "size", form=mib),
    DeclaredColumn("wait_s", "From a rank's start to the last rank's.", "waiting"),
    DeclaredColumn("skew_s", "From a rank's start to the last rank's.", "waiting"),
    DeclaredColumn("wire_s", "From the last rank's start to the end.", "wire"),
    DeclaredColumn("error", "Predicted over measured, less one.", signed=True),
    DeclaredColumn("overhead_error", "The same of what a step takes over one process.", signed=True),
    DeclaredColumn("launched_error", "Of when it is launched, of the step.", signed=True),
    DeclaredColumn("ready_error", "Of when it is ready, of the step.", signed=True),
    DeclaredColumn("started_error", "Of when it starts, of the step.", signed=True),
    DeclaredColumn("finished_error", "Of when it is finished, of the step.", signed=True),
    DeclaredColumn("trace", "The order trace.", words=True, place=True),
    DeclaredColumn("policy", "When buckets are rebuilt.", words=True, place=True),
    DeclaredColumn("predictor", "What tells the next order.", words=True, place=True),
    DeclaredColumn("predicted_gain", "Share of the present step that is saved.", signed=True),
    DeclaredColumn("oracle_s", "A step of buckets rebuilt for nothing in an order known in advance.", "order known"),
    DeclaredColumn("rebuilt_once_s", "A step of buckets rebuilt once, after the first backward.", "rebuilt once"),
    DeclaredColumn("torch_s", "A step of stock DDP.", "stock DDP"),
    DeclaredColumn("regret", "How much longer than where the order is known.", "over order known"),
    DeclaredColumn("bound", "What would be saved of stock DDP's step were the order known.", "at most"),
    DeclaredColumn("tau", "Kendall's tau of the order that was expected and the one that came.", "Kendall's tau",
                   form="{:.2f}".format),
    DeclaredColumn("median_error", "Median of errors of the step, without their signs.", "error of the step, median"),
    DeclaredColumn("p95_error", "The same, 95th percentile.", "95th percentile"),
    DeclaredColumn("signed_error", "Median of errors of the step, with the least and the most.", "signed median",
                   signed=True),
    DeclaredColumn("ratio_error", "Error of the step over one process's.", signed=True),
    DeclaredColumn("noise", "Half the range of repeated runs over their mean."),
    DeclaredColumn("one_process", "Time of one process; c where it was computed, not run.", heading="one process ms"),
    DeclaredColumn("pairs_in_order", "Pairs of schemes whose order is predicted, of those that differ by 1 %.",
                   "pairs more than 1 % apart, in the right order"),
    DeclaredColumn("constant", "The name of a constant.", words=True, read=lambda record: record["name"]),
    DeclaredColumn("constant_value", "Its value, in its unit.", "value", read=lambda record: f"{record['value']:.4g}"),
    DeclaredColumn("constant_unit", "The unit; of a ratio none.", "unit", words=True,
                   read=lambda record: "" if record["unit"] == "1" else record["unit"]),
    DeclaredColumn("constant_band", "Its 10th to its 90th percentile.", "80 % band", words=True, read=_constant_band),
    DeclaredColumn("standing", "What it rests on: `measured`, `given`, `prior`.", heading="", words=True),
    DeclaredColumn("mean_tau", "Mean of Kendall's tau.", "mean", form="{:.4f}".format),
    DeclaredColumn("worst_tau", "Least of Kendall's tau.", "worst", form="{:.4f}".format),
    DeclaredColumn("gain_over_never", "Share of the step without rebuilding that is saved.", "over never"),
    DeclaredColumn("gpu", "The GPU of a machine.", "GPU", words=True),
    DeclaredColumn("nics", "NICs of a node.", "NICs"),
    DeclaredColumn("ends", "Both ends of a link.", "link", words=True),
    DeclaredColumn("bandwidth_Bps", "What a link carries.", heading="each direction", form=format_bandwidth),
    DeclaredColumn("latency_s", "What a link's hop takes, where its file states it.", heading="latency",
                   form=format_time),
    DeclaredColumn("pair_bandwidth_Bps", "What a pair of GPUs has alone.", heading="one pair alone",
                   form=format_bandwidth),
    DeclaredColumn("channel_bandwidth_Bps", "What a channel of NCCL has.", heading="each", form=format_bandwidth),
    DeclaredColumn("gradient_bytes", "Bytes of all gradients.", "gradients"),
    DeclaredColumn("first", "The parameter with which a device's part begins.", "from", words=True),
    DeclaredColumn("sent_bytes", "Activations that a device passes on to the next.", "passes on"),
    DeclaredColumn("held_back_s", "How long complete buckets wait for one before them.", "held back"),
)  # fmt: skip

DECLARED: Mapping[str, DeclaredColumn] = {**COLUMNS, **{each.name: each for each in _OF_A_STEP}}
"""All columns, those of the parts of one step included."""

_DISTINGUISHING = frozenset({"model", "batch_size", "precision", "cap", "scheme"})

TELLING = _DISTINGUISHING - {"model"} | {"rate", "other_pace", "micro_batch_s"}
"""Columns of a comparison, next to nodes, that distinguish rows of one model and machine."""

SHOWN: Mapping[str, ShownColumns] = {
    "plan": ShownColumns((
        "topology", "pace", "nodes", "world_size", "buckets", "step_s", "scaling_efficiency", "gain", "memory", "binds",
    )),
    "plan: parts": ShownColumns((
        "topology", "pace", "nodes", "world_size", "step_input_s", "step_forward_s", "step_backward_compute_s",
        "step_exposed_comm_s", "step_buffer_broadcast_s", "step_ddp_overhead_s", "step_optimizer_s", "overlap_ratio",
    )),
    "plan: notebook": ShownColumns(("topology", "nodes", "step_s", "micro_batch_s", "gain", "torch", "trial")),
    "plan: page": ShownColumns((
        "workload", "topology", "nodes", "world_size", "step_s", "micro_batch_s", "buckets", "gain", "trial",
        "default_step_s", "samples_per_s", "scaling_efficiency", "step_exposed_comm_s", "overlap_ratio",
        "step_hidden_comm_cost_s", "bound_by", "binding_link", "memory", "compute_device",
    ), frozenset({"workload"})),
    "plan --schemes": ShownColumns((
        "topology", "nodes", "world_size", "scheme", "step_s", "step_exposed_comm_s", "gain", "memory",
    )),
    "plan --search": ShownColumns((
        "scheme", "tensor_parallel", "stages", "data_parallel", "micro_batch_size", "accumulate", "buckets", "step_s",
        "samples_per_s", "memory", "gain_over_plain_ddp", "binds",
    )),
    "sweep": ShownColumns((
        "nodes", "world_size", "cap", "step_s", "step_exposed_comm_s", "overlap_ratio", "scaling_efficiency",
        "micro_batch_s",
    ), plain=frozenset({"step_s"})),
    "sweep: page": ShownColumns((
        "cap", "nodes", "world_size", "step_s", "micro_batch_s", "samples_per_s", "scaling_efficiency",
        "step_exposed_comm_s", "overlap_ratio", "step_forward_s", "step_backward_compute_s", "step_buffer_broadcast_s",
        "step_ddp_overhead_s", "step_optimizer_s", "step_hidden_comm_cost_s",
    ), plain=frozenset({"step_s"})),
    "compare": ShownColumns((
        "model", "machine", "gpus", "precision", "batch_size", "cap", "scheme", "rate", "other_pace", "micro_batch_s",
        "step_s", "samples_per_s", "scaling_efficiency", "tokens_per_s", "exposed_share", "binds",
        "binding_link", "memory",
    ), _DISTINGUISHING),
    "compare: costs": ShownColumns((
        "model", "machine", "gpus", "precision", "batch_size", "cap", "scheme", "rate", "other_pace", "cost_per_hour",
        "cost_per_million_samples", "epoch_s", "cost_per_epoch", "pareto",
    ), _DISTINGUISHING),
    "compression": ShownColumns((
        "machine", "nodes", "scheme", "ratio", "plain_s", "step_s", "gain", "pays_below", "measured",
    )),
    "predict: buckets": ShownColumns((
        "index", "parameters", "size_bytes", "ready_s", "launched_s", "started_s", "finished_s",
    )),
    "run: buckets": ShownColumns((
        "index", "size_bytes", "ready_s", "launched_s", "started_s", "finished_s", "written_s",
    )),
    "page: buckets": ShownColumns((
        "index", "size_bytes", "ready_s", "queued_s", "wait_s", "on_wire_s", "finished_s", "written_s",
    )),
    "explain: collectives": ShownColumns((
        "collective", "operation", "gradients", "size_bytes", "ready_s", "started_s", "finished_s", "wait_s", "wire_s",
        "last_rank",
    )),
    "order-bench": ShownColumns((
        "trace", "machine", "policy", "predictor", "step_s", "oracle_s", "rebuilt_once_s", "torch_s", "regret", "gain",
        "bound", "tau", "held_back_s", "rebuilds",
    ), frozenset({"machine"})),
    "campaign": ShownColumns((
        "configuration", "one_process", "measured_s", "noise", "predicted_s", "error", "overhead_error",
        "ratio_error", "term",
    ), digits=2),
    "campaign: schemes": ShownColumns((
        "scheme", "configurations", "median_error", "p95_error", "signed_error",
    ), digits=2),
    "campaign: families": ShownColumns((
        "family", "predicted best", "measured best", "regret_of_predicted_best", "pairs_in_order",
    ), digits=2),
    "demo: timed": ShownColumns((
        "bucket_cap_mb", "DDP of", "measured_s", "predicted_s", "error", "overhead_error", "nearest trivial",
    )),
    "demo: computed": ShownColumns((
        "bucket_cap_mb", "step / one process", "predicted", "ratio_error", "measured_s", "error",
    )),
    "constants": ShownColumns((
        "constant", "constant_value", "constant_unit", "constant_band", "standing", "source",
    )),
    "calibrate: constants": ShownColumns((
        "constant", "constant_value", "constant_unit", "constant_band", "origin",
    )),
    "order-run": ShownColumns(("arm", "step_s", "gain", "gain_over_never", "steps")),
    "topologies": ShownColumns(("name", "nodes", "gpus_per_node", "gpu", "nics", "fabric", "confidence")),
    "links": ShownColumns(("ends", "kind", "count", "bandwidth_Bps", "latency_s")),
    "workloads": ShownColumns((
        "name", "device", "precision", "batch_size", "parameters", "gradient_bytes", "local_s", "estimated",
    )),
    "workload: parts": ShownColumns(("device", "parameters", "gradient_bytes", "first", "sent_bytes")),
    "workload: buckets": ShownColumns((
        "index", "parameters", "size_bytes", "ready_s", "launched_s", "started_s", "finished_s", "skew_s", "wire_s",
    )),
    "workload: collectives": ShownColumns(("name", "operation", "size_bytes", "group", "ranks", "duration_s")),
    "tuning": ShownColumns((
        "call", "buckets", "predicted_step_s", "predicted_gain", "measured_step_s", "measured_steps", "saved_s",
    )),
}  # fmt: skip
