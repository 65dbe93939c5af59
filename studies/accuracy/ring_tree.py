"""Ring against tree: of allreduces measured with each forced, whether the one predicted to be faster was.

Times are by constants fitted without the site of the case: the shipped ones, in whose fit single figures took no part,
or of a table's site those of the fold that left it out (`residuals.constants`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.tuning import best, time_us
from ddpsim.collectives.nccl.versions import RING, TREE
from studies.accuracy.residuals import constants
from studies.accuracy.rows import read_rows
from studies.accuracy.systems import TABLES, System, load, machine

APART = 0.05
"""Part by which the measured times differ where it is told apart which is the faster."""

ENOUGH = 20
"""Cases below which there is insufficient evidence."""

TABLES_OF_BOTH = (
    ("l40s_4gpu_pcie_{}.csv", "4xl40s-pcie", 1, "l40s"),
    ("l40s_2gpu_pcie_{}.csv", "2xl40s-pcie", 1, "l40s"),
    ("gcp_a3high_3node_24xH100_tcp_{}_torch.csv", "a3high", 3, "a3high"),
)
"""Tables with one row a size, `{}` where the algorithm stands; their machine, nodes and site."""

FIGURES = "ring_tree.csv"


@dataclass(frozen=True, slots=True)
class Case:
    """An allreduce of one size, measured with a ring and with trees.

    Attributes:
        source: a public repository and a path in it.
        version: of NCCL, major * 1000 + minor.
        ring_s, tree_s: measured.
        simple_only: whether NCCL_PROTO was Simple.
        site: whose tables the case is of; none where constants are fitted to none of its source.
    """

    source: str
    machine: str
    nodes: int
    ranks: int
    version: int
    size_bytes: int
    ring_s: float
    tree_s: float
    gpus_per_process: int = 1
    simple_only: bool = False
    site: str = ""

    @property
    def ring_is_faster(self) -> bool:
        """Whether the ring was measured to be."""
        return self.ring_s < self.tree_s

    @property
    def is_apart(self) -> bool:
        """Whether the slower took more than `APART` longer."""
        return max(self.ring_s, self.tree_s) > (1 + APART) * min(self.ring_s, self.tree_s)

    def predicted_s(self) -> tuple[float, float]:
        """Return the times of the ring and of trees by constants in whose fit the case took no part."""
        calibration = _folds().get(self.site)
        layout = _layout(self.machine, self.nodes, self.ranks, self.version, self.simple_only)
        ring, tree = (
            NcclTransport(
                layout,
                calibration,
                options=CollectiveOptions(algorithm=name, isolated=False, gpus_per_process=self.gpus_per_process),
            )
            for name in (RING, TREE)
        )
        return ring.allreduce_s(self.size_bytes), tree.allreduce_s(self.size_bytes)

    def believed_s(self) -> tuple[float, float]:
        """Return the same by NCCL's own model."""
        shape = _layout(self.machine, self.nodes, self.ranks, self.version, self.simple_only).shape
        ring, tree = (
            time_us(best(shape, self.size_bytes, name), shape, self.size_bytes) * 1e-6 for name in (RING, TREE)
        )
        return ring, tree


@dataclass(frozen=True, slots=True)
class Verdict:
    """A case with what is predicted of it, and what NCCL's own model says: times of the ring and of trees."""

    case: Case
    ours_s: tuple[float, float]
    nccl_s: tuple[float, float]

    @property
    def ours_right(self) -> bool:
        """Whether the one predicted to be faster was."""
        return (self.ours_s[0] < self.ours_s[1]) == self.case.ring_is_faster

    @property
    def nccl_right(self) -> bool:
        """Whether the one that NCCL's model says is faster was."""
        return (self.nccl_s[0] < self.nccl_s[1]) == self.case.ring_is_faster


@dataclass(frozen=True, slots=True)
class Score:
    """How many of some cases are right, by our model and by NCCL's."""

    cases: int
    ours: int
    nccl: int

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Score:
        """Return the score of `verdicts`."""
        return cls(len(verdicts), sum(v.ours_right for v in verdicts), sum(v.nccl_right for v in verdicts))


def cases() -> list[Case]:
    """Return every case of 1 KiB and more, of the tables and of the single figures."""
    return [*_of_tables(), *_of_figures()]


def judged() -> list[Verdict]:
    """Return every case with both predictions."""
    return [Verdict(case, case.predicted_s(), case.believed_s()) for case in cases()]


def _of_tables() -> Iterator[Case]:
    for pattern, name, nodes, site in TABLES_OF_BOTH:
        ring, tree = (load(System(pattern.format(each), name, nodes, site)) for each in (RING, TREE))
        assert (ring.algorithm, tree.algorithm) == (RING, TREE)
        source = re.sub(r"^https://github.com/([^/]+/[^/]+)/blob/[^/]+/", r"\1 ", ring.table.header["source"])
        trees = dict(zip(tree.sizes, tree.measured.tolist(), strict=True))
        for size, ring_s in zip(ring.sizes, ring.measured.tolist(), strict=True):
            yield Case(
                source,
                name,
                nodes,
                ring.placement.world_size,
                ring.version,
                size,
                ring_s,
                trees[size],
                ring.gpus_per_process,
                ring.simple_only,
                site,
            )


def _of_figures() -> Iterator[Case]:
    for row in read_rows(TABLES / FIGURES):
        major, minor = row["nccl"].split(".")[:2]
        yield Case(
            source=row["source"],
            machine=row["machine"],
            nodes=int(row["nodes"]),
            ranks=int(row["ranks"]),
            version=int(major) * 1000 + int(minor),
            size_bytes=int(row["size_bytes"]),
            ring_s=float(row["ring_time_us"]) * 1e-6,
            tree_s=float(row["tree_time_us"]) * 1e-6,
            gpus_per_process=int(row["gpus_per_process"]),
        )


@lru_cache(maxsize=1)
def _folds() -> dict[str, Calibration]:
    return constants()


@lru_cache(maxsize=64)
def _layout(name: str, nodes: int, ranks: int, version: int, simple_only: bool) -> Layout:
    return Layout(machine(name).place(nodes, ranks // nodes), version, simple_only=simple_only)
