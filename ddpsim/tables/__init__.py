"""Tables of results: columns that are declared once, and writers of text, Markdown, HTML and JSON."""

from ddpsim.tables.columns import GBPS, cell, column, table_from_records
from ddpsim.tables.table import Column, Record, ResultTable

__all__ = ["GBPS", "Column", "Record", "ResultTable", "cell", "column", "table_from_records"]
