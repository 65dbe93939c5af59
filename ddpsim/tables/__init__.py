"""Tables of results: columns that are declared once, and writers of text, Markdown, HTML and JSON."""

from ddpsim.tables.columns import GBPS, column, keyed
from ddpsim.tables.table import Column, Record, Table

__all__ = ["GBPS", "Column", "Record", "Table", "column", "keyed"]
