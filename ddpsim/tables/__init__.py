"""Tables of results: columns that are declared once, and writers of text, Markdown, HTML and JSON."""

from ddpsim.tables.columns import GBPS, cell, column, keyed
from ddpsim.tables.table import Column, Record, ResultTable

__all__ = ["GBPS", "Column", "Record", "ResultTable", "cell", "column", "keyed"]
