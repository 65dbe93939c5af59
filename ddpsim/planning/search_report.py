"""What a search found: the leaders, each with its row of a plan, and why the other candidates are none."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.markup import SCREEN
from ddpsim.planning.candidates import RuledOut, SearchCandidate
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.prediction.document import flat
from ddpsim.prediction.prediction import Band
from ddpsim.tables import table_from_records
from ddpsim.units import format_count


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A candidate and the row of a plan that was made for it."""

    candidate: SearchCandidate
    plan: PlanRow

    def __repr__(self) -> str:
        return f"<SearchRow: {self.candidate}, {self.plan.chosen.step_text}>"

    @property
    def step_s(self) -> Band:
        """The time between two steps of the optimizer with its band, in seconds."""
        return self.plan.chosen.step_s

    def document(self) -> dict[str, object]:
        """Return one row of the `plan` document with `--search`."""
        return {**self.plan.document(), **self.candidate.document(self.plan.chosen.placement.world_size)}

    def describe(self) -> dict[str, object]:
        """Return the row as tables show it: flat, its times of the optimizer's step."""
        return {**self.plan.describe(), **self.candidate.document(self.plan.chosen.placement.world_size)}


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The best of what was looked over on one machine and node count.

    Attributes:
        name: the workload's.
        rows: the leaders, the fastest first.
        global_batch_size: samples of a step, of every candidate alike.
        candidates: how many there were in all.
        simulated: how many of them were simulated.
        ruled_out: the others, by reason.
        plain: DDP at torch's defaults for as many samples, whether it fits or not; where that cannot be, why.
    """

    name: str
    rows: tuple[SearchRow, ...]
    global_batch_size: int
    candidates: int
    simulated: int
    ruled_out: tuple[RuledOut, ...]
    plain: SearchRow | str

    def __repr__(self) -> str:
        return f"<SearchReport: {format_count(self.candidates, 'candidate')}, best {self.best!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a leader."""
        shown = (*SHOWN, "iteration_s", "micro_batch_s", "samples_per_s", "buckets", "memory_fits")
        return table_from_records([row.describe() for row in self.rows], shown).html(SCREEN)

    @property
    def best(self) -> SearchRow:
        """The fastest."""
        return self.rows[0]

    def gain_of(self, row: SearchRow) -> float | None:
        """Return the share of plain DDP's step that a row saves; None where there is no such step."""
        return None if isinstance(self.plain, str) else 1 - row.step_s[0] / self.plain.step_s[0]

    @property
    def within(self) -> tuple[SearchRow, ...]:
        """The other leaders whose band begins before that of the best ends."""
        return tuple(row for row in self.rows[1:] if row.step_s[1] <= self.best.step_s[2])

    @property
    def plans(self) -> PlanReport:
        """The leaders' rows as a plan has them."""
        return PlanReport(tuple(row.plan for row in self.rows), self.name)

    def records(self) -> list[dict[str, object]]:
        """Return the rows of the document, each flat, for `pandas.DataFrame`."""
        return [flat(self._document(row)) for row in self.rows]

    def _document(self, row: SearchRow) -> dict[str, object]:
        return {**row.document(), "gain_over_plain_ddp": self.gain_of(row)}

    def document(self) -> dict[str, object]:
        """Return the `plan` document with `--search`, of one workload, machine and node count."""
        chosen, memory = self.best.plan.chosen, self.best.plan.chosen.memory
        return {
            "rows": [self._document(row) for row in self.rows],
            "best": self._document(self.best),
            "search": {
                "workload": self.name,
                "topology": chosen.topology.name,
                "nodes": chosen.nodes,
                "world_size": chosen.placement.world_size,
                "global_batch_size": self.global_batch_size,
                "memory_limit_bytes": None if memory is None else memory.capacity_bytes,
                "candidates": self.candidates,
                "simulated": self.simulated,
                "ruled_out": [each.document() for each in self.ruled_out],
                "plain_ddp": None if isinstance(self.plain, str) else self.plain.document(),
            },
        }


SHOWN = ("scheme", "tensor_parallel", "stages", "data_parallel", "micro_batch_size", "accumulate")
"""Keys of a candidate, as tables show them."""
