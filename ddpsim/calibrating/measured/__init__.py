"""Measured tables of collectives: nccl-tests text, its `-J` JSON (the microbenchmark writes the same), CSV."""

from ddpsim.calibrating.measured.reading import parse_table, parse_tables, read_table, read_tables
from ddpsim.calibrating.measured.table import Conditions, MeasuredRow, MeasuredTable

__all__ = ["Conditions", "MeasuredRow", "MeasuredTable", "parse_table", "parse_tables", "read_table", "read_tables"]
