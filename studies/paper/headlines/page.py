"""The page of the headlines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studies.paper.claim import Claim, counted
from studies.paper.headlines.headline import SystemClaim
from studies.paper.headlines.open import OPEN

_HEAD = """# Headlines of the systems beside DDP

Written by `make paper` (`python -m studies.paper schemes --out studies/paper`): figures and verdicts are the
command's. Each row is the headline of a system that DDP's paper sets beside DDP, from that system's own paper or
documentation, as public copies of abstracts, READMEs and threads have it. Nothing is fitted to a row: a GPU's pace is
the source's own of one GPU where it states one, else the estimate; machines are the stated ones, the rest is assumed
and said. A row holds within 15 % of the figure, or where the fact is so. Headlines whose source does not state the
set-up that decides them are listed below and not judged.
"""

_BEHIND = """## What was not found

- **The papers' texts.** Abstracts were found of all; of set-ups that only a text states, what is assumed says so, and
  what is remembered of a text says that. No figure of a row is from memory.
- **A figure of MultiWorkerMirroredStrategy's own.** Its guide and its pages state none.
- **A Horovod timeline of a model that is shipped here.** Public ones are of three small linear layers
  (andrewor14/tf-logs, `horovod_timeline.json`, broadcasts by MPI) and of a CIFAR-10 network on one GPU
  (argonne-lcf/ALCF_Hands_on_HPC_Workshop, `timeline_gpu_n1.json`), whose cycles begin 1.05 to 1.06 ms apart where the
  default is 1 ms. `horovod`'s buffers are held to its rule as the sources have it, not to a timeline.
"""


def page_of(claims: Sequence[Claim]) -> str:
    """Return the page."""
    rows = [claim for claim in claims if isinstance(claim, SystemClaim)]
    return "\n".join([_HEAD, *_summary(rows), *_rows(rows), *_open(), _BEHIND])


def _summary(rows: Sequence[SystemClaim]) -> Iterator[str]:
    yield f"## What holds\n\nOf {len(rows)} headlines: {counted(rows)}.\n"
    yield "| | the paper | simulated | verdict |"
    yield "|--:|---|---|---|"
    for row in rows:
        yield f"| {row.number} | {row.paper} | {row.simulated} | {row.verdict} |"
    yield ""


def _open() -> Iterator[str]:
    yield "## Not judged: the source does not state the set-up\n"
    for each in OPEN:
        yield f"- {each.system}: {each.paper} ({each.source}). Not stated: {each.missing}."
    yield ""


def _rows(rows: Sequence[SystemClaim]) -> Iterator[str]:
    for system in dict.fromkeys(row.system for row in rows):
        yield f"## {system}\n"
        for row in rows:
            if row.system == system:
                yield f"**{row.number}. {row.paper}: {row.verdict}.** Simulated: {row.simulated}. {row.why}\n"
                yield f"Source: {row.source}. Stated: {row.stated}. Assumed: {row.assumed}.\n"
