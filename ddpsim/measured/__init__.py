"""Measured tables of collectives: nccl-tests text, its `-J` JSON (the microbenchmark writes the same), CSV."""

from ddpsim.measured.conditions import Conditions
from ddpsim.measured.reading import parse_table, parse_tables, read_table, read_tables
from ddpsim.measured.table import MeasuredRow, MeasuredTable

__all__ = ["Conditions", "MeasuredRow", "MeasuredTable", "parse_table", "parse_tables", "read_table", "read_tables"]
