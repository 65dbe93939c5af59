"""The page of validation and its pictures, from the runs under `traces/`: `make validation`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from studies.validation.evidence import Evidence, load
from studies.validation.round_robin import gains
from studies.validation.validation_page import NOTHING, section

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("validation.md")
PUBLISHED = ROOT / "studies" / "published" / "published.md"
HEAD = """# Validation: predicted against measured

Written by `make validation` from the runs kept under `traces/`; nothing on this page is typed in but the prose. Each
source of measurements has tables of its own and none is pooled with another. "Before the runs" is what the simulator
said before a configuration ran for the first time, kept with the time of writing and a fingerprint of all it was made
from; "today's code" is what the present simulator says from the same kept inputs, its constants fitted anew to the kept
microbenchmarks. Errors are predicted / measured - 1. [Why believe it](../../docs/explanation/evidence.md) tells how
the runs were made and what they do not show.
"""
_ROUND_ROBIN = """A campaign of its own, `traces/round-robin.yaml`: ResNet-50 in buckets of 0.25 MiB between two ranks,
on a link where each collective waits for the delay and on one where all share the rate. The gain is 1 - step / step
with one group. Networks of the campaign that have no row were not run.
"""


def page(records: Path, folder: Path) -> str:
    """Return the page.

    Args:
        records: folder with `lab`, `gpu` and `round-robin`, each a record, or absent.
        folder: where the pictures go.
    """
    parts = [
        HEAD,
        "## Lab: real DDP over gloo on shaped networks\n",
        "CPU ranks, real buckets, hooks and traffic; computation is timed layers at a GPU's recorded pace, or real.\n",
        _recorded(records / "lab", folder, "validation-lab"),
        "## One GPU: real DDP over NCCL\n",
        _recorded(records / "gpu", folder, "validation-gpu"),
        "## Round-robin process groups\n",
        _ROUND_ROBIN,
        _gains(records / "round-robin"),
        "## Published measurements of others\n",
        published(PUBLISHED.read_text()),
    ]
    return "\n".join(parts)


def _gains(record: Path) -> str:
    evidence = _evidence(record)
    return NOTHING if evidence is None else "\n".join(gains(evidence.recorded)) + "\n"


def published(text: str) -> str:
    """Return the summary of the page on PyTorch's published DDP table, `text`."""
    title, table = "## Overheads, mean absolute error", r"\n.*?(?=\n## )"
    (found,) = re.findall(re.escape(title) + table, text, re.DOTALL)
    rows = "\n".join(line for line in found.splitlines() if line.startswith("|"))
    return (
        "PyTorch's own DDP benchmark, 2 to 16 V100: mean absolute error of the overhead over one GPU. Four constants\n"
        "are fitted to the rows named first; the others are held out. Every case is on\n"
        "[its page](../published/published.md); public allreduce tables are in [accuracy](../accuracy/accuracy.md).\n\n"
        f"{rows}\n"
    )


def _recorded(record: Path, folder: Path, name: str) -> str:
    evidence = _evidence(record)
    return NOTHING if evidence is None else section(evidence, folder, name)


def _evidence(record: Path) -> Evidence | None:
    if not (record / "campaign.yaml").exists():
        return None
    with tempfile.TemporaryDirectory() as work:
        return load(record, Path(work), lambda line: print(line, file=sys.stderr, flush=True))
