"""Rows of the CSV files that are kept here, whose lines that begin with # say where they come from."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path


@cache
def read_rows(path: Path) -> tuple[dict[str, str], ...]:
    """Return the rows of the CSV file at `path`, by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))
