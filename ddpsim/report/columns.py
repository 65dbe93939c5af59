"""Records as a table of a report."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.report.model import Table
from ddpsim.tables import Record, keyed


def record_table(title: str, records: Sequence[Record], keys: Sequence[str] = (), **given: str | bool) -> Table:
    """Return records as a table, a row a record.

    Args:
        title: of the table.
        records, keys: as those of `keyed`.
        given: `note` and `folded` of the table.
    """
    made = keyed(records, keys)
    rows = tuple(tuple("–" if cell is None else cell for cell in row) for row in made.rows)
    return Table(title, made.header, rows, made.words, **given)  # type: ignore[arg-type]
