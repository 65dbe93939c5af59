"""The figures as pictures, and the page that tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpsim.files import write_whole
from studies.paper import lab
from studies.paper.assumptions import ASSUMPTIONS, CENTRAL, Assumption
from studies.paper.claim import Claim, counted
from studies.paper.figure import Figure, Reproduction

Found = Sequence[tuple[Figure, Reproduction]]

PAGE = "paper.md"

_HEAD = """# The paper's evaluation, again

Written by `make paper` (`ddpsim paper all --out docs/reference`): pictures, tables and verdicts are the command's, only
the prose is typed. Claims are those of section 5 of Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", VLDB 2020, and of figure 2. A claim holds where the central prediction is within 15 % of the paper's
figure, or has its best, sign and order; `undecided` where its figure fixed what it would be judged by, or where
trainings leave it open. Rows from 15 on are those of a post on AWS of 2019. Stars in pictures are what paper and post
say in words; the paper's pictures have no figures to read off.
"""

_SET_UP = """## Set-up

`topologies/ddp-paper.yaml` is the exclusive cluster, four servers of eight V100 in a hybrid cube mesh with one 100 Gb/s
card each, `topologies/ddp-paper-shared.yaml` the shared one, where server 20 has a congested link that only jobs of 256
GPUs meet. PyTorch 1.5 never rebuilds buckets and caps the first at 1 MiB. NCCL is 2.4.8, which its wheels hold: trees
for every size on two servers, up to a size on more (`ncclTreeThreshold` in its `src/init.cc`). ResNet-50 and BERT-large
in fp32, estimated for a V100, with plain SGD. ResNet-50's step is shared by forward and backward as it was measured on
one (`FORWARD_MS` in `studies/paper/setup.py`). BERT-large's takes as long as NVIDIA publishes for 32 sequences of 128
tokens; at 384 tokens steps are published a fifth longer than so estimated ([estimates](estimates.md)), and at that pace
claims 11 and 14 would be just beyond their tolerance (4.5 times, 27 %).

What the paper does not say is assumed; the assumptions that have no source outside the paper are fixed by one figure
each and used by all others.
"""

_LAB = """Measured on the lab: figures 6, 7, 10 and 12 by `traces/paper.yaml`, real DDP over gloo at 2 to 8 ranks on
shaped networks of one machine, each prediction written before its run ([the lab](../how-to/lab.md)). The paper's
clusters are not there: what carries over is sign and order. Labs ran ahead of all other work of a machine of two cores.
{errors}
"""


def written(found: Found, folder: Path) -> list[Path]:
    """Write a picture of each figure that has panels, the pages of their own, and `paper.md`; return their paths."""
    from ddpsim.plots.panels import plot_panels

    paths = []
    for figure, made in found:
        if made.panels:
            path = folder / _picture(figure)
            plot_panels(made.panels, path)
            paths.append(path)
    pages = {f"paper-{figure.name}.md": figure.page(made.claims) for figure, made in found if figure.page is not None}
    shared = [each for each in found if each[0].page is None]
    if shared:
        pages[PAGE] = page_of(shared)
    for name, text in pages.items():
        write_whole(folder / name, text.encode())
    return [*paths, *(folder / name for name in pages)]


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
    yield f"## What holds\n\nOf {len(claims)} claims: {counted(claims)}.\n"
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
