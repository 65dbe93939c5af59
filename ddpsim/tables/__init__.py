"""Tables of results: columns that are declared once, and writers of text, CSV, Markdown, HTML and JSON."""

from ddpsim.tables.cells import GBPS
from ddpsim.tables.columns import cell_of, csv_of, heading_of, list_shown, parse_columns, table_of, text_of
from ddpsim.tables.declared import COLUMNS
from ddpsim.tables.lines import break_line
from ddpsim.tables.table import Record, ResultTable

__all__ = [
    "COLUMNS", "GBPS", "Record", "ResultTable", "break_line", "cell_of", "csv_of", "heading_of", "list_shown",
    "parse_columns", "table_of", "text_of",
]  # fmt: skip
