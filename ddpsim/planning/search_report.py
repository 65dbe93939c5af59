"""The result of a search: the leaders, each with its row of a plan, and why the other candidates are none."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.common.markup import SCREEN
from ddpsim.common.tables import table_of
from ddpsim.common.units import format_count
from ddpsim.planning.candidates import RuledOut, SearchCandidate
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.planning.worth import Trial, decide
from ddpsim.prediction.document import flat
from ddpsim.prediction.predict import gain_band
from ddpsim.prediction.prediction import Band


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A candidate and the row of a plan that was made for it."""

    candidate: SearchCandidate
    plan: PlanRow

    def __repr__(self) -> str:
        return f"<SearchRow: {self.candidate}, {self.plan.chosen.step_text}>"

    @property
    def may_not_fit(self) -> bool:
        """Whether what it needs is known, and may be more than there is."""
        memory = self.plan.chosen.memory
        return memory is not None and memory.in_doubt

    @property
    def fits(self) -> bool:
        """Whether it fits as far as is known."""
        return self.plan.fits is not False and not self.may_not_fit

    @property
    def step_s(self) -> Band:
        """The time between two steps of the optimizer with its band, in seconds."""
        return self.plan.chosen.step_s

    def document(self) -> dict[str, object]:
        """Return one row of the `plan` document with `--search`."""
        return {**self.plan.document(), **self.candidate.document(self.plan.chosen.placement.world_size)}

    def describe(self) -> dict[str, object]:
        """Return the row as tables show it."""
        return {**self.plan.describe(), **self.candidate.document(self.plan.chosen.placement.world_size)}


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The best candidates of a search on one machine and node count.

    Attributes:
        name: the workload's.
        rows: the leaders, which surely fit or are not judged, the fastest first.
        global_batch_size: samples of a step, of every candidate alike.
        candidates: how many there were in all.
        simulated: how many of them were simulated.
        ruled_out: the others, by reason.
        plain: DDP at torch's defaults for as many samples, whether it fits or not; where that cannot be, why.
        plain_among: whether that is among what was looked over.
        may_not_fit: what is faster than all leaders and may not fit, the fastest first.
    """

    name: str
    rows: tuple[SearchRow, ...]
    global_batch_size: int
    candidates: int
    simulated: int
    ruled_out: tuple[RuledOut, ...]
    plain: SearchRow | str
    plain_among: bool
    may_not_fit: tuple[SearchRow, ...] = ()

    def __repr__(self) -> str:
        return f"<SearchReport: {format_count(self.candidates, 'candidate')}, best {self.best!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a leader."""
        return table_of("plan --search", self.describe(*self.rows, *self.may_not_fit)).html(SCREEN)

    @property
    def best(self) -> SearchRow | None:
        """What is advised of what surely fits: plain DDP where that does and no leader surely gains over it.

        None where nothing surely fits.
        """
        if self._default is None:
            return next(iter(self.rows), None)
        advised, _ = self._decision
        return self._default if advised is None else advised[0]

    @property
    def trial(self) -> Trial | None:
        """What is worth one trial run beside the best; None where nothing is, or plain DDP is no choice."""
        if self._default is None or (trial := self._decision[1]) is None:
            return None
        return Trial(trial[0].plan.advice, *trial[1], str(trial[0].candidate))

    @property
    def _default(self) -> SearchRow | None:
        """Plain DDP where it fits and was a candidate: it stays unless something surely gains."""
        plain = self.plain
        if isinstance(plain, str) or not plain.fits or not self.plain_among:
            return None
        return next((row for row in self.rows if row.candidate == plain.candidate), plain)

    @property
    def _decision(self) -> tuple[tuple[SearchRow, Band] | None, tuple[SearchRow, Band] | None]:
        return decide([(row, gain) for row in self.rows if (gain := self.gain_band_of(row)) is not None])

    def gain_of(self, row: SearchRow) -> float | None:
        """Return the share of plain DDP's step that a row saves; None where there is no such step."""
        return None if (gain := self.gain_band_of(row)) is None else gain[0]

    def gain_band_of(self, row: SearchRow) -> Band | None:
        """Return the same with its band, the same doubts drawn for both."""
        if isinstance(self.plain, str):
            return None
        plain, own = self.plain.plan.chosen, row.plan.chosen
        times = own.options.accumulate / plain.options.accumulate
        return 1 - row.step_s[0] / self.plain.step_s[0], *gain_band(plain, own, times=times)

    @property
    def within(self) -> tuple[SearchRow, ...]:
        """The other leaders whose band begins before that of the best ends."""
        best = self.best
        others = (row for row in self.rows if best is not None and row.candidate != best.candidate)
        return tuple(row for row in others if best is not None and row.step_s[1] <= best.step_s[2])

    @property
    def plans(self) -> PlanReport:
        """The rows of what surely fits as a plan has them."""
        return PlanReport(tuple(row.plan for row in self.rows), self.name)

    def records(self) -> list[dict[str, object]]:
        """Return the rows of the document, each flat, for `pandas.DataFrame`."""
        return [flat(self._document(row)) for row in (*self.rows, *self.may_not_fit)]

    def describe(self, *rows: SearchRow) -> list[dict[str, object]]:
        """Return rows as tables show them, with what they gain over plain DDP."""
        return [{**row.describe(), **self._gains(row)} for row in rows]

    def _document(self, row: SearchRow) -> dict[str, object]:
        return {**row.document(), **self._gains(row)}

    def _gains(self, row: SearchRow) -> dict[str, object]:
        keys = ("gain_over_plain_ddp", "gain_over_plain_ddp_low", "gain_over_plain_ddp_high")
        return dict(zip(keys, self.gain_band_of(row) or (None, None, None), strict=True))

    def document(self) -> dict[str, object]:
        """Return the `plan` document with `--search`, of one workload, machine and node count."""
        first, best, trial = (*self.rows, *self.may_not_fit)[0], self.best, self.trial
        chosen, memory = first.plan.chosen, first.plan.chosen.memory
        return {
            "rows": [self._document(row) for row in self.rows],
            "may_not_fit": [self._document(row) for row in self.may_not_fit],
            "best": None if best is None else self._document(best),
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
                "trial": None if trial is None else {"candidate": trial.name, **trial.document()},
                "plain_ddp": None if isinstance(self.plain, str) else self.plain.document(),
            },
        }
