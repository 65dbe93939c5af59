"""The page of schemes measured, from its template and runs under `traces/`: `make schemes-measured`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ddpexec.lab.campaign.spec import Configuration
from studies.schemes.other_runs import OTHER, table
from studies.schemes.schemes_page import Chosen, tables
from studies.validation.evidence import load

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("schemes-measured.md")
TEMPLATE = Path(__file__).with_name("schemes-measured.md.in")


def chosen_of_table1(configuration: Configuration) -> bool:
    """Whether today's structure was chosen by a configuration of Table 1's systems.

    It was by those of the first two networks' first family, and where ranks go alone by all.
    """
    run = configuration.run
    return (run.network != "quad-narrow" and run.wire_over_backward == 1.5) or run.options["scheme"].endswith("async")


def chosen_of_all(configuration: Configuration) -> bool:
    """Whether it was by a configuration of all schemes: by all in an earlier run, `hsdp` apart, by `local-sgd`'s."""
    return not configuration.run.options["scheme"].startswith("hsdp")


def chosen_of_rows(configuration: Configuration) -> bool:
    """Whether it was by a configuration of the rows that had no campaign before: by none."""
    del configuration
    return False


RECORDS: dict[str, Chosen] = {"schemes": chosen_of_all, "table1": chosen_of_table1, "rows": chosen_of_rows}
"""By name of a record, whether the model's structure was chosen by one of its configurations."""


def page(records: Path) -> str:
    """Return the page, with the tables of each record in its place."""
    text = TEMPLATE.read_text()
    for name, chosen in RECORDS.items():
        with tempfile.TemporaryDirectory() as work:
            evidence = load(records / name, Path(work), lambda line: print(line, file=sys.stderr, flush=True))
            text = text.replace(f"{{{name}}}", tables(evidence, chosen))
    for kind in OTHER:
        text = text.replace(f"{{{kind}}}", table(kind))
    return text
