"""Tables of results: columns that are declared once, and writers of text, CSV, Markdown, HTML and JSON."""

from ddpsim.common.tables.cells import GBPS
from ddpsim.common.tables.columns import cell_of, csv_of, heading_of, list_shown, parse_columns, table_of, text_of
from ddpsim.common.tables.declared import COLUMNS
from ddpsim.common.tables.lines import break_line
from ddpsim.common.tables.table import Record, ResultTable

__all__ = [
    "COLUMNS", "GBPS", "Record", "ResultTable", "break_line", "cell_of", "csv_of", "heading_of", "list_shown",
    "parse_columns", "table_of", "text_of",
]  # fmt: skip
