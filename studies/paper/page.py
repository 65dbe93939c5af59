"""The figures as pictures, and the page that tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpsim.common.files import write_whole
from ddpsim.common.tables import break_line
from studies.paper import lab
from studies.paper.assumptions import ASSUMPTIONS, CENTRAL, Assumption
from studies.paper.claim import Claim, counted
from studies.paper.figure import Figure, Reproduction

Found = Sequence[tuple[Figure, Reproduction]]

PAGE = "paper.md"

_HEAD = """# The paper's evaluation, again

Written by `make paper` (`python -m studies.paper all --out studies/paper`): pictures, tables and verdicts are the
command's, only the prose is typed. Claims 1 to 14 are those of section 5 of Li et al., "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", VLDB 2020, and of figure 2; rows from 15 on are those of a post
on AWS of 2019. A claim holds where the central prediction is within 15 % of the paper's figure, or has its best, sign
and order; rows that are compared with each other hold where they have their place among them too. It is `undecided`
where the step that it is about fixed what it would be judged by, or where trainings leave it open. Stars in pictures
are what paper and post say in words; the paper's pictures have no figures to read off.
"""

_SET_UP = """## Set-up

`topologies/ddp-paper.yaml` is the exclusive cluster, four servers of eight V100 in a hybrid cube mesh with one 100 Gb/s
card each, `topologies/ddp-paper-shared.yaml` the shared one, where server 20 has a congested link that only jobs of 256
GPUs meet. PyTorch 1.5 never rebuilds buckets and caps the first at 1 MiB. NCCL is 2.4.8, which its wheels hold: trees
for every size on two servers, up to a size on more (`ncclTreeThreshold` in its `src/init.cc`). ResNet-50 and BERT-large
in fp32, estimated for a V100, with plain SGD. ResNet-50's step is shared by forward and backward as it was measured on
one (`FORWARD_MS` in `studies/paper/setup.py`). BERT-large's takes as long as NVIDIA publishes for 32 sequences of 128
tokens; at 384 tokens steps are published a fifth longer than so estimated ([estimates](../estimates/estimates.md)).

What the paper does not say is assumed; the assumptions that have no source outside the paper are fixed by one figure
each and used by all others.
"""

_LAB = """Measured on the lab: figures 6, 7, 10 and 12 by `traces/paper.yaml`, real DDP over gloo at 2 to 8 ranks on
shaped networks of one machine, each prediction written before its run ([the lab](../../docs/how-to/lab.md)). The
paper's clusters are not there: what carries over is sign and order. Labs ran ahead of all other work of a machine of
two cores.
{errors}
"""


def written(found: Found, folder: Path) -> list[Path]:
    """Write a picture of each figure that has panels, the pages of their own, and `paper.md`; return their paths."""
    from ddpsim.report.plots import save_charts
    from studies.paper.panels import LAYOUT

    paths = []
    for figure, made in found:
        if made.panels:
            path = folder / _picture(figure)
            save_charts(made.panels, path, LAYOUT)
            paths.append(path)
    pages = pages_of(found)
    for name, text in pages.items():
        write_whole(folder / name, text.encode())
    return [*paths, *(folder / name for name in pages)]


def pages_of(found: Found) -> dict[str, str]:
    """Return the pages of some figures by their names."""
    pages = {f"paper-{figure.name}.md": figure.page(made.claims) for figure, made in found if figure.page is not None}
    shared = [each for each in found if each[0].page is None]
    return pages | ({PAGE: page_of(shared)} if shared else {})


def page_of(found: Found) -> str:
    """Return the page of some figures."""
    claims = sorted((claim for _, made in found for claim in made.claims), key=lambda claim: claim.number)
    parts = [_HEAD, *_summary(claims), _SET_UP, *_assumptions()]
    for figure, made in found:
        parts += _figure(figure, made)
    return "\n".join(parts) + "\n"


def _picture(figure: Figure) -> str:
    return f"paper-{figure.name}.png"


def _summary(claims: Sequence[Claim]) -> Iterator[str]:
    yield f"## What holds\n\n{tally(claims)}\n"
    yield "| | figure | the paper | simulated | measured on the lab | verdict |"
    yield "|--:|---|---|---|---|---|"
    for claim in claims:
        yield _row(claim.number, claim.figure, claim.paper, claim.simulated, claim.measured or "-", claim.verdict)
    yield ""
    yield "Bands are the assumptions' ranges, each alone at both ends, joined in quadrature.\n"
    yield _LAB.format(errors=lab.errors())


def _assumptions() -> Iterator[str]:
    yield "| assumed | value | range | fixed by | why |"
    yield "|---|--:|--:|---|---|"
    for each in ASSUMPTIONS:
        yield _row(each.what, value_of(each), f"{each.low:g} to {each.high:g}", each.fixed_by, each.why)
    yield ""


def tally(claims: Sequence[Claim]) -> str:
    """Return how many hold, of the paper's claims and of the post's rows apart."""
    sources = {"aws": "of the post's {} rows", "schemes": "of the systems' {} headlines"}
    parts: dict[str, list[Claim]] = {}
    for claim in claims:
        parts.setdefault(sources.get(claim.figure, "of the paper's {} claims"), []).append(claim)
    told = "; ".join(f"{what.format(len(found))} {counted(found)}" for what, found in parts.items())
    return break_line(f"{told[:1].upper()}{told[1:]}.", "")


def value_of(assumption: Assumption) -> str:
    """Return the central value with its unit."""
    return f"{getattr(CENTRAL, assumption.field) / assumption.scale:g} {assumption.unit}".strip()


def _figure(figure: Figure, made: Reproduction) -> Iterator[str]:
    yield f"## {figure.title}\n"
    if made.panels:
        yield f"![{figure.title}]({_picture(figure)})\n"
    for claim in made.claims:
        yield f"**{claim.number}. {claim.paper}: {claim.verdict}.** Simulated: {claim.simulated}."
        if claim.measured is not None:
            yield f"On the lab: {claim.measured}."
        yield f"{claim.why}\n"
    for note in made.notes:
        yield f"{note}\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
