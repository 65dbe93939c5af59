"""Tables of results: columns that are declared once, and writers of text, Markdown, HTML and JSON."""

from ddpsim.tables.columns import GBPS, cell, column, table_from_records
from ddpsim.tables.lines import break_line
from ddpsim.tables.table import Column, Record, ResultTable

__all__ = ["GBPS", "Column", "Record", "ResultTable", "break_line", "cell", "column", "table_from_records"]
