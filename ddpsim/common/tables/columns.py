"""Tables of records by the names of their columns: `table_of` makes one, `text_of` and `csv_of` write it.

A declaration in `declared` holds wherever the column is shown. Otherwise the end of a key is its unit (`_s`, `_bytes`),
which determines heading and digits (`heading_of`, `_cell`); a key's band is in keys with `_low` and `_high`, and stands
behind the value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from io import StringIO
from textwrap import wrap

from ddpsim.common.errors import InputError, UnknownNameError, join_problems
from ddpsim.common.tables.cells import GBPS, percent
from ddpsim.common.tables.declared import COLUMNS, DECLARED, SHOWN, ShownColumns
from ddpsim.common.tables.table import WIDEST, Record, ResultTable
from ddpsim.common.units import MIB

_LONG = ("epoch_s", "deadline_s")
"""Keys of seconds that are shown in hours."""

_SHARES = ("gain", "saving", "ratio", "efficiency", "error", "share", "regret", "bound", "noise")

_COUNTS = ("nodes", "world_size")
"""Keys of numbers that are written as they are typed."""

_NUMBER = re.compile(r"[+-]?\d[\d,.]*( %)?")


def parse_columns(text: str | None, place: str = "columns") -> tuple[str, ...]:
    """Return the names of columns in a text `nodes,step_s`; none without a text.

    Raises:
        InputError: no name, a name twice, or one that no column has.
    """
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    figures = (each for each, declared in COLUMNS.items() if not (declared.words or declared.place))
    known = [*COLUMNS, *(end for each in figures for end in _list_ends(each))]
    for name in names:
        if name not in known:
            near = "".join(f"; did you mean {each}?" for each in get_close_matches(name, known, n=1))
            there = wrap(f"there are {', '.join(COLUMNS)}", WIDEST, break_long_words=False)
            raise UnknownNameError(join_problems([f"unknown column {name!r}{near}", *there]), place=place)
    if len(set(names)) < len(names):
        raise InputError("names a column twice", place=place, remedy="leave it out once")
    return names


def cell_of(record: Record, key: str, *, bands: bool = True, plain: bool = False, digits: int = 1) -> str | None:
    """Return the cell of a record in the column of a key; None where it is empty.

    Args:
        record: flat.
        key: of the column.
        bands: whether the band follows in brackets, where the record has one and the column declares no other cell.
        plain: whether to write the value by the unit of its key, whatever is declared.
        digits: decimals of a per cent.
    """
    declared = DECLARED.get(key)
    if declared is not None and declared.read is not None and not plain:
        value = declared.read(record)
        return None if value is None else str(value)
    return _format_band(key, record, digits) if bands else _cell(key, record.get(key), digits)


def table_of(command: str, records: Sequence[Record], keys: Sequence[str] = (), *, bands: bool = True) -> ResultTable:
    """Return a command's table of its records.

    Args:
        command: one of `SHOWN`; of any other name all columns are shown.
        records: flat.
        keys: names of columns to show instead.
        bands: as those of `cell_of`.
    """
    currency = next((str(found) for record in records if (found := record.get("cost_currency"))), "cost")
    names = keys or list_shown(command, records)
    shown = SHOWN.get(command, _ALL)
    rows = tuple(
        tuple(cell_of(record, name, bands=bands, plain=name in shown.plain, digits=shown.digits) for name in names)
        for record in records
    )
    words = (n for n, name in enumerate(names) if _begins_left(name, [record.get(name) for record in records]))
    return ResultTable(tuple(heading_of(name, currency) for name in names), rows, frozenset(words))


_ALL = ShownColumns(())


def text_of(command: str, records: Sequence[Record], keys: Sequence[str] = (), *, bands: bool = False) -> str:
    """Return the same as text; a table that is too wide is cut, with the columns that identify a row in each part."""
    names = keys or list_shown(command, records)
    places = [number for number, name in enumerate(names) if name in DECLARED and DECLARED[name].place]
    return table_of(command, records, names, bands=bands).parts(places)


def csv_of(command: str, records: Sequence[Record], keys: Sequence[str] = ()) -> str:
    """Return the same as CSV: names, and values in the units of their names; words where a column has no such key.

    Costs, which stand below in text, are more columns.
    """
    shown = [each for each in (command, f"{command}: costs") if each in SHOWN]
    names = keys or tuple(dict.fromkeys(name for each in shown for name in list_shown(each, records)))
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow(_plain_value(name, record) for name in names)
    return lines.getvalue().removesuffix("\n")


def _plain_value(name: str, record: Record) -> object:
    value = record.get(name)
    return cell_of(record, name) if value is None or isinstance(value, Mapping | list) else value


def list_shown(command: str, records: Sequence[Record]) -> tuple[str, ...]:
    """Return the columns that a command shows by default, without empty ones and those that differ in no row."""
    shown, known = SHOWN.get(command, _ALL), []
    present = dict.fromkeys(key for record in records for key in record)
    ends = {end for key in present for end in band_keys(key, present) or ()}
    for name in shown.names or [key for key in present if key not in ends]:
        cells = {cell_of(record, name, bands=False) for record in records}
        if cells != {None} and (name not in shown.differing or len(cells) > 1):
            known.append(name)
    return tuple(known)


def heading_of(key: str, currency: str = "cost") -> str:
    """Return the heading of a key's column, with the unit that its cells are in; `currency` is that of prices."""
    declared = DECLARED.get(key)
    if declared is not None and declared.heading is not None:
        return declared.heading.replace("{currency}", currency)
    plain = None if declared is None else declared.title
    if key.endswith("_per_s"):
        return plain or f"{key.removesuffix('_per_s').replace('_', ' ')}/s"
    if key in _LONG:
        return f"{key.removesuffix('_s')} h"
    for suffix, unit in (("_s", "ms"), ("_us", "us"), ("_bytes", "MiB"), ("_Bps", "Gb/s")):
        if key.endswith(suffix):
            return f"{plain or key.removesuffix(suffix).replace('_', ' ')} {unit}"
    return plain or key.replace("_", " ")


def _cell(key: str, value: object, digits: int = 1) -> str | None:
    """Return one value in the unit of its key; None where there is none."""
    if value is None:
        return None
    declared = DECLARED.get(key)
    if declared is not None and declared.form is not None:
        return declared.form(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float) or key in _COUNTS:
        return str(value)
    if key == "cost" or any(word in key.split("_") for word in _SHARES):
        return percent(value, declared is not None and declared.signed, digits)
    if key in _LONG:
        return f"{value / 3600:.4g}"
    if key.endswith("_s") and not key.endswith("_per_s"):
        return f"{value * 1e3:.2f}"
    if key.endswith("_us"):
        return f"{value:,.1f}"
    if key.endswith("_bytes"):
        return f"{value / MIB:,.1f}"
    if key.endswith("_Bps"):
        return f"{value * GBPS:,.4g}"
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def band_keys(key: str, present: Container[str]) -> tuple[str, str] | None:
    """Return the keys of both ends of a key's band, before its unit or behind it; None where they are not there."""
    before, behind = _list_ends(key)[:2], _list_ends(key)[2:]
    return next(((low, high) for low, high in (before, behind) if low in present and high in present), None)


def _list_ends(key: str) -> tuple[str, str, str, str]:
    """Return the possible keys of the ends of a key's band."""
    unit = next((suffix for suffix in ("_s", "_us", "_bytes", "_Bps") if key.endswith(suffix)), "")
    stem = key.removesuffix(unit)
    return f"{stem}_low{unit}", f"{stem}_high{unit}", f"{key}_low", f"{key}_high"


def _format_band(key: str, record: Record, digits: int) -> str | None:
    value = _cell(key, record.get(key), digits)
    low, high = (record.get(end) for end in band_keys(key, record) or (key, key))
    if value is None or low is None or high is None or low == high:
        return value
    return f"{value} ({(_cell(key, low, digits) or '').removesuffix(' %')} to {_cell(key, high, digits)})"


def _begins_left(key: str, values: Sequence[object]) -> bool:
    if key in DECLARED:
        return DECLARED[key].words and not any(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
    # What is no text is a number, and so is a text that reads as one.
    return all(
        value is None or isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value))
        for value in values
    )
