"""Schemes side by side on each machine: what a step takes under each, what a rank needs, and whether to leave DDP."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.markup import SCREEN
from ddpsim.common.options.option import check_given
from ddpsim.common.tables import table_of
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.planning.planner import jobs_of, places_of
from ddpsim.planning.ranking import list_rankable
from ddpsim.planning.worth import Trial, decide, is_advised
from ddpsim.prediction.answers import Answers, computing, name_job
from ddpsim.prediction.document import describe_row, flat
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import gain_band
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Topology
from ddpsim.workload import Workload

DDP = "ddp"


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """One scheme on one machine and node count, beside DDP there.

    Attributes:
        gain_low, gain_high: band of the share of DDP's step that it saves, the same doubts drawn for both.
    """

    prediction: Prediction
    default: Prediction
    gain_low: float = 0.0
    gain_high: float = 0.0

    @property
    def scheme(self) -> str:
        """The scheme, as it was asked for."""
        return self.prediction.options.scheme

    @property
    def gain(self) -> float:
        """Share of DDP's step that it saves."""
        return 1 - self.prediction.iteration_s / self.default.iteration_s

    @property
    def fits(self) -> bool | None:
        """Whether it fits the GPUs' memory; None where that cannot be told."""
        memory = self.prediction.memory
        return None if memory is None else memory.fits

    @property
    def may_not_fit(self) -> bool:
        """Whether what it needs is known, and may be more than there is."""
        memory = self.prediction.memory
        return memory is not None and memory.in_doubt

    @property
    def gain_band(self) -> Band:
        """The gain with its band."""
        return self.gain, self.gain_low, self.gain_high

    @property
    def worth_it(self) -> bool:
        """Whether to leave DDP for it, as for other buckets."""
        return is_advised(self.gain_band)

    def document(self) -> dict[str, object]:
        """Return one row of the `plan` document with schemes."""
        return {
            **self.prediction.step_document(),
            "default_iteration_s": self.default.iteration_s,
            "gain": self.gain,
            "gain_low": self.gain_low,
            "gain_high": self.gain_high,
            "worth_it": self.worth_it,
            "fits": self.fits,
        }

    def describe(self) -> dict[str, object]:
        """Return the row as tables show it; DDP itself gains nothing that is to be told."""
        own = {"gain": None, "gain_low": None, "gain_high": None} if self.prediction is self.default else {}
        return {**describe_row(self.document()), **own}


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """The schemes on one machine and node count, and the one that is advised.

    Attributes:
        rows: in the order asked for.
    """

    rows: tuple[SchemeRow, ...]

    @property
    def default(self) -> SchemeRow:
        """The row of DDP, which was predicted whether it is among those asked for or not."""
        own = (row for row in self.rows if row.scheme == DDP)
        return next(own, SchemeRow(self.rows[0].default, self.rows[0].default))

    @property
    def best(self) -> SchemeRow:
        """The fastest that surely fits and is worth leaving DDP for; DDP where none is, and it fits."""
        fitting = self._fitting
        if fitting[0].scheme != DDP:
            return min(fitting, key=lambda row: row.prediction.iteration_s)
        advised, _ = decide([(row, row.gain_band) for row in fitting[1:]])
        return self.default if advised is None else advised[0]

    @property
    def trial(self) -> Trial | None:
        """What is worth one trial run beside the best; None where nothing is, or DDP does not fit."""
        fitting = self._fitting
        _, trial = decide([(row, row.gain_band) for row in fitting[1:] if fitting[0].scheme == DDP])
        return None if trial is None else Trial(trial[0].prediction.plan.torch, *trial[1], trial[0].scheme)

    @property
    def _fitting(self) -> list[SchemeRow]:
        """DDP and the others of those that surely fit, or are not judged; where none does, that may fit, else all."""
        every = [self.default, *(row for row in self.rows if row.scheme != DDP)]
        may = [row for row in every if row.fits is not False]
        return [row for row in may if not row.may_not_fit] or may or every

    @property
    def keep_ddp(self) -> bool:
        """Whether the advice is to keep DDP."""
        return self.best.scheme == DDP


@dataclass(frozen=True, slots=True)
class SchemeReport:
    """The choice on each machine and node count."""

    choices: tuple[SchemeChoice, ...]

    @property
    def best(self) -> SchemeRow | None:
        """The advised row of most samples a second, of those that may fit where any does; None where none is ranked."""
        ranked = list_rankable((choice.best for choice in self.choices), lambda row: row.prediction)
        fitting = [row for row in ranked if row.fits is not False] or ranked
        return max(fitting, key=lambda row: row.prediction.samples_per_s, default=None)

    @property
    def rows(self) -> list[SchemeRow]:
        """The rows of all choices."""
        return [row for choice in self.choices for row in choice.rows]

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a scheme, machine and node count."""
        return table_of("plan --schemes", [row.describe() for row in self.rows]).html(SCREEN)

    def records(self) -> list[dict[str, object]]:
        """Return the rows of the document, each flat, for `pandas.DataFrame`."""
        return [flat(row.document()) for row in self.rows]

    def document(self) -> dict[str, object]:
        """Return the `plan` document with schemes."""
        chosen, best = [choice.best for choice in self.choices], self.best
        trials = {id(choice.best.prediction): choice.trial for choice in self.choices}

        def document(row: SchemeRow) -> dict[str, object]:
            trial = trials.get(id(row.prediction)) if row in chosen else None
            named = None if trial is None else {"scheme": trial.name, **trial.document()}
            return {**row.document(), "best": row in chosen, "trial": named}

        return {"rows": [document(row) for row in self.rows], "best": None if best is None else document(best)}


def choose(
    workload: Workload | str | Model,
    topologies: Sequence[Topology],
    schemes: Sequence[str],
    *,
    nodes: Sequence[int | None] = (None,),
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    executor: Executor | WorkerPool | None = None,
    cache: str | Path | None = None,
) -> SchemeReport:
    """Predict a step under each of `schemes` on each topology and node count, and advise one.

    Args:
        workload: put on each machine's own GPU, as `Model` does.
        schemes: as `--scheme` takes them; DDP is predicted beside them whether it is among them or not.
        progress: called with (cells done, cells in all).
        executor: where they are computed; None is here, one by one.
        cache: file in which answers are kept, and found again.

    Raises:
        InputError: no topology, node count or scheme; and as `predict`.
    """
    check_given("schemes", schemes)
    model = Model.of(workload, options)
    jobs = jobs_of(model, places_of(topologies, nodes), options or Options(), gpus_per_node, calibration)
    with computing(executor, cache, progress) as compute:
        return SchemeReport(tuple(compute(partial(choose_scheme, schemes=schemes), jobs, name_job)))


def choose_scheme(answers: Answers, job: Job, schemes: Sequence[str]) -> SchemeChoice:
    """Return the rows of a job under each of some schemes."""
    default = answers.predict(replace(job, options=replace(job.options, scheme=DDP)))
    rows = []
    for scheme in schemes:
        if scheme == DDP:
            rows.append(SchemeRow(default, default))
            continue
        with_scheme = replace(job, options=replace(job.options, scheme=scheme))
        prediction = answers.predict(with_scheme, local_s=default.local_s)
        rows.append(SchemeRow(prediction, default, *gain_band(default, prediction)))
    return SchemeChoice(tuple(rows))
