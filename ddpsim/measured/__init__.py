"""Measured allreduce tables: nccl-tests text, its `-J` JSON (the microbenchmark writes the same), CSV."""

from ddpsim.measured.conditions import Conditions
from ddpsim.measured.reading import parse_table, read_table
from ddpsim.measured.table import MeasuredRow, MeasuredTable

__all__ = ["Conditions", "MeasuredRow", "MeasuredTable", "parse_table", "read_table"]
