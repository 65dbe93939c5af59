"""Records as tables: the unit of a key says how its values are shown, and a band stands beside what it is of."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ddpsim.report.model import Table
from ddpsim.units import MIB

Record = Mapping[str, object]

_LABELS = {
    "topology": "machine", "world_size": "ranks", "compute_device": "pace", "iteration_s": "step",
    "default_iteration_s": "default's step", "iteration_low_s": "step, low end", "iteration_high_s": "step, high end",
    "backward_compute_s": "backward", "exposed_comm_s": "exposed", "ddp_overhead_s": "DDP", "local_s": "without DDP",
    "buffer_broadcast_s": "broadcast", "samples_per_s": "samples/s", "overlap_ratio": "hidden",
    "hidden_comm_cost_s": "cost of hidden communication", "scaling_efficiency": "efficiency",
    "keep_default": "default kept", "bucket_cap_mb": "cap MiB", "exposed_share": "exposed", "binding_link": "link",
    "memory_fits": "memory", "cost_per_hour": "cost/h", "accumulate": "micro-batches a step",
    "cost_per_million_samples": "cost of a million samples",
    "cost_per_epoch": "cost of an epoch", "input_s": "batch", "pareto": "unbeaten",
}  # fmt: skip
GBPS = 8e-9
"""Gigabits a second in a byte a second: links are sold by these."""

_LONG = ("epoch_s", "deadline_s")
"""Keys of seconds that are shown in hours."""

_SHARES = ("gain", "saving", "ratio", "efficiency", "error", "share")


def record_table(title: str, records: Sequence[Record], keys: Sequence[str] = (), **given: str | bool) -> Table:
    """Return records as a table, a row a record.

    Args:
        title: of the table.
        records: flat.
        keys: to show, those that no record has left out; all of them where none is given. The ends of a band stand in
            the cell of what they are of.
        given: `note` and `folded` of the table.
    """
    present = dict.fromkeys(key for record in records for key in record)
    ends = {end for key in present for end in band_keys(key, present) or ()}
    wanted = [key for key in keys if key in present] if keys else [key for key in present if key not in ends]
    words = frozenset(n for n, key in enumerate(wanted) if all(_is_text(record.get(key)) for record in records))
    rows = tuple(tuple(format_column(key, record) for key in wanted) for record in records)
    return Table(title, tuple(heading(key) for key in wanted), rows, words, **given)  # type: ignore[arg-type]


def heading(key: str) -> str:
    """Return the heading of a key's column, with the unit that its cells are in."""
    plain = _LABELS.get(key)
    if key.endswith("_per_s"):
        return plain or f"{key.removesuffix('_per_s').replace('_', ' ')}/s"
    if key in _LONG:
        return f"{key.removesuffix('_s')} h"
    for suffix, unit in (("_s", "ms"), ("_us", "us"), ("_bytes", "MiB"), ("_Bps", "Gb/s")):
        if key.endswith(suffix):
            return f"{plain or key.removesuffix(suffix).replace('_', ' ')} {unit}"
    return plain or key.replace("_", " ")


def format_column(key: str, record: Record) -> str:
    """Return the value of a key in its column's unit, with its band in brackets where the record has one."""
    value = cell(key, record.get(key))
    low, high = (record.get(end) for end in band_keys(key, record) or (key, key))
    if low is None or high is None or low == high:
        return value
    return f"{value} ({cell(key, low)} to {cell(key, high)})"


def cell(key: str, value: object) -> str:
    """Return one value in the unit of its key."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if _is_share(key):
        return f"{100 * value:.1f} %"
    if key in _LONG:
        return f"{value / 3600:.4g}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"{value * 1e3:.2f}"
    if key.endswith("_bytes"):
        return f"{value / MIB:,.1f}"
    if key.endswith("_Bps"):
        return f"{value * GBPS:,.4g}"
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def band_keys(key: str, present: Container[str]) -> tuple[str, str] | None:
    """Return the keys of both ends of a key's band, before its unit or behind it; None where they are not there."""
    unit = next((suffix for suffix in ("_s", "_us", "_bytes") if key.endswith(suffix)), "")
    stem = key.removesuffix(unit)
    for ends in ((f"{stem}_low{unit}", f"{stem}_high{unit}"), (f"{key}_low", f"{key}_high")):
        if all(end in present for end in ends):
            return ends
    return None


def _is_share(key: str) -> bool:
    return key == "cost" or any(word in key.split("_") for word in _SHARES)


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str | bool)
