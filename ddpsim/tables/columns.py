"""The columns of results, by the keys of their documents: what each is called, and how its values are written.

The end of a key is its unit, and says how its values are shown; the ends of a band stand beside what they are of.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ddpsim.tables.table import Column, Record, ResultTable
from ddpsim.units import MIB

_HEADINGS = {
    "topology": "machine", "world_size": "ranks", "compute_device": "pace", "iteration_s": "step",
    "default_iteration_s": "default's step", "iteration_low_s": "step, low end", "iteration_high_s": "step, high end",
    "backward_compute_s": "backward", "exposed_comm_s": "exposed", "ddp_overhead_s": "DDP", "local_s": "without DDP",
    "buffer_broadcast_s": "broadcast", "samples_per_s": "samples/s", "overlap_ratio": "hidden",
    "hidden_comm_cost_s": "cost of hidden communication", "scaling_efficiency": "efficiency",
    "keep_default": "default kept", "bucket_cap_mb": "cap MiB", "exposed_share": "exposed", "binding_link": "link",
    "memory_fits": "memory", "cost_per_hour": "cost/h", "price_per_hour": "price of a node/h",
    "accumulate": "micro-batches a step",
    "cost_per_million_samples": "cost of a million samples",
    "cost_per_epoch": "cost of an epoch", "input_s": "batch", "pareto": "unbeaten", "torch": "paste",
}  # fmt: skip
"""What is called otherwise than its key says."""

GBPS = 8e-9
"""Gigabits a second in a byte a second: links are sold by these."""

_LONG = ("epoch_s", "deadline_s")
"""Keys of seconds that are shown in hours."""

_SHARES = ("gain", "saving", "ratio", "efficiency", "error", "share")

_COUNTS = ("nodes", "world_size")
"""Keys of numbers that are written as they are typed."""


def column(key: str, heading: str | None = None, *, words: bool = False, bands: bool = True) -> Column[Record]:
    """Return the column of a key.

    Args:
        heading: in the place of the key's own.
        words: as those of `Column`.
        bands: whether a cell has its band in brackets, where the record has one.
    """
    return Column(
        heading_of(key) if heading is None else heading,
        lambda record: _format_band(key, record) if bands else cell(key, record.get(key)),
        words,
    )


def table_from_records(records: Sequence[Record], keys: Sequence[str] = ()) -> ResultTable:
    """Return the table of records, a row a record, with the bands of its cells.

    Args:
        records: flat.
        keys: to show, those that no record has left out; all of them where none is given.
    """
    present = dict.fromkeys(key for record in records for key in record)
    ends = {end for key in present for end in band_keys(key, present) or ()}
    wanted = [key for key in keys if key in present] if keys else [key for key in present if key not in ends]
    columns = [column(key, words=all(_is_text(record.get(key)) for record in records)) for key in wanted]
    return ResultTable.of(columns, records)


def heading_of(key: str) -> str:
    """Return the heading of a key's column, with the unit that its cells are in."""
    plain = _HEADINGS.get(key)
    if key.endswith("_per_s"):
        return plain or f"{key.removesuffix('_per_s').replace('_', ' ')}/s"
    if key in _LONG:
        return f"{key.removesuffix('_s')} h"
    for suffix, unit in (("_s", "ms"), ("_us", "us"), ("_bytes", "MiB"), ("_Bps", "Gb/s")):
        if key.endswith(suffix):
            return f"{plain or key.removesuffix(suffix).replace('_', ' ')} {unit}"
    return plain or key.replace("_", " ")


def cell(key: str, value: object) -> str | None:
    """Return one value in the unit of its key; None where there is none."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float) or key in _COUNTS:
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


def _format_band(key: str, record: Record) -> str | None:
    value = cell(key, record.get(key))
    low, high = (record.get(end) for end in band_keys(key, record) or (key, key))
    if value is None or low is None or high is None or low == high:
        return value
    return f"{value} ({cell(key, low)} to {cell(key, high)})"


def _is_share(key: str) -> bool:
    return key == "cost" or any(word in key.split("_") for word in _SHARES)


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str | bool)
