"""Records as a table of a report."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.report.model import Table
from ddpsim.tables import Record, table_from_records


def record_table(title: str, records: Sequence[Record], keys: Sequence[str] = (), **given: str | bool) -> Table:
    """Return records as a table, a row a record.

    Args:
        title: of the table.
        records, keys: as those of `table_from_records`.
        given: `note` and `folded` of the table.
    """
    return Table(title, table_from_records(records, keys), **given)  # type: ignore[arg-type]
