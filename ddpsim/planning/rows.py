"""The result of `ddpsim.planning.planner`: a row for each machine and node count, and the buckets advised there.

`PlanRow` holds the best buckets and torch's default; which of the two is advised is `keep_default`, by the rule of
`worth.py`, and `chosen` is that prediction. `PlanReport` ranks the rows of several machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.collectives.constant import Constant
from ddpsim.common.errors import InputError
from ddpsim.common.markup import SCREEN
from ddpsim.common.tables import table_of
from ddpsim.common.units import MIB, format_count
from ddpsim.planning.bound import Bound, describe_bound
from ddpsim.planning.ranking import list_rankable
from ddpsim.planning.savings import Saving
from ddpsim.planning.worth import NO_GAIN, WORTH_IT, Trial, arguments_of, is_advised
from ddpsim.prediction.document import describe_row, flat
from ddpsim.prediction.prediction import Band, Prediction


@dataclass(frozen=True, slots=True)
class AlternativePlan:
    """Another constructor call: simpler and slower than the plan's, or longer and faster.

    Attributes:
        torch: the constructor call.
        iteration_s: what a step takes with it.
    """

    torch: str
    iteration_s: float


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The best buckets of one machine and node count, and torch's default.

    Attributes:
        best: the buckets that are advised, or where those are torch's default, the best others, within
            `best_buckets.TELLING` of the fastest tried.
        default: torch's, [1, 25] MiB.
        sweep: (cap in MiB, iteration in seconds) of every uniform cap tried, ascending.
        fastest_s: iteration of the fastest of all tried, which the best plan may be simpler than.
        bound: what binds the step that is advised; None where it was not looked for.
        priors: constants of the host's time that nobody measured.
        best_low, best_high: band of the gain of `best`, the same doubts drawn for both plans.
        savings: where the best plan saves it, the largest first; empty where that is the default.
        others: the best single cap where the plan is a list.
        trial: what is worth one trial run beside the advice; None where nothing is.
    """

    best: Prediction
    default: Prediction
    sweep: tuple[tuple[float, float], ...]
    fastest_s: float
    bound: Bound | None = None
    priors: tuple[Constant, ...] = ()
    best_low: float = 0.0
    best_high: float = 0.0
    savings: tuple[Saving, ...] = ()
    others: tuple[AlternativePlan, ...] = ()
    trial: Trial | None = None

    def __repr__(self) -> str:
        trial = "" if self.trial is None else f", {self.trial}"
        return f"<PlanRow: {self.chosen!r}, gain {self.gain:.1%}{trial}>"

    @property
    def best_gain(self) -> Band:
        """Share of the default's iteration that the best plan saves, advised or not, with its band."""
        return 1 - self.best.iteration_s / self.default.iteration_s, self.best_low, self.best_high

    @property
    def gain_band(self) -> Band:
        """Share of the default's iteration that what is advised saves, with its band; 0 with the default."""
        return NO_GAIN if self.keep_default else self.best_gain

    @property
    def gain(self) -> float:
        """Share of the default's iteration that what is advised saves."""
        return self.gain_band[0]

    @property
    def gain_low(self) -> float:
        """Low end of the gain's band."""
        return self.gain_band[1]

    @property
    def gain_high(self) -> float:
        """High end of the gain's band."""
        return self.gain_band[2]

    def gain_of(self, other: AlternativePlan) -> float:
        """Return the share of the default's iteration that another line saves."""
        return 1 - other.iteration_s / self.default.iteration_s

    @property
    def most(self) -> float:
        """Share of the default's iteration that the fastest of all tried saves."""
        return 1 - self.fastest_s / self.default.iteration_s

    @property
    def keep_default(self) -> bool:
        """Whether torch's default is advised: the best gain is under 1 %, or may be none at all."""
        return not is_advised(self.best_gain)

    @property
    def gain_from_hidden_comm(self) -> float:
        """How much of the best's gain is there only because computing and communicating at once has a price."""
        before_s, after_s = (each.iteration_s - (each.hidden_comm_cost_s or 0.0) for each in (self.default, self.best))
        return self.best_gain[0] - (1 - after_s / before_s)

    @property
    def chosen(self) -> Prediction:
        """What is advised: the default, where the best gains too little."""
        return self.default if self.keep_default else self.best

    @property
    def host_cost_s(self) -> float:
        """How much shorter the advised step would be on a host that takes no time; 0 where host and device are one."""
        return 0.0 if self.bound is None else self.bound.lost.get("host", 0.0)

    @property
    def host_bound(self) -> bool:
        """Whether the host costs a step more than a gain is worth."""
        return self.host_cost_s > WORTH_IT * self.chosen.iteration_s

    @property
    def rests_on_priors(self) -> bool:
        """Whether a gain is advised that rests on launch costs nobody measured."""
        return not self.keep_default and self.host_bound and (self.chosen.workload.estimated or bool(self.priors))

    @property
    def fits(self) -> bool | None:
        """Whether what is advised fits the GPUs' memory; None where that cannot be told."""
        memory = self.chosen.memory
        return None if memory is None else memory.fits

    @property
    def advice(self) -> str:
        """The constructor call to paste."""
        return self.chosen.plan.torch

    @property
    def paste(self) -> str:
        """What is advised and what is worth a trial, in words: `bucket_cap_mb=100`."""
        return "; ".join([arguments_of(self.advice), *([] if self.trial is None else [str(self.trial)])])

    @property
    def cap_mb(self) -> float:
        """Where what is advised stands among caps, in MiB: the default at its own, a list at its mean bucket."""
        plan, caps = self.chosen.plan, self.chosen.options.caps
        if self.keep_default:
            return caps.limits()[-1] / MIB
        return plan.size_bytes / len(plan.buckets) / MIB if caps.bucket_cap_mb is None else caps.bucket_cap_mb

    @property
    def buckets(self) -> str:
        """The caps in few words: `default (38)`, `25 MiB (12)`, or how many buckets a list makes."""
        caps, count = self.chosen.options.caps, len(self.chosen.plan.buckets)
        if self.keep_default:
            return f"default ({count})"
        return format_count(count, "bucket") if caps.bucket_cap_mb is None else f"{caps.bucket_cap_mb:g} MiB ({count})"

    def describe(self) -> dict[str, object]:
        """Return the row as tables show it, the gain that of the advice; buckets and what binds in words."""
        return {
            **describe_row(self._without_transports()),
            "buckets": self.buckets,
            "trial": None if self.trial is None else str(self.trial),
            "binds": None if self.bound is None else describe_bound(self.bound, self.chosen.workload),
        }

    def document(self) -> dict[str, object]:
        """Return one row of the `plan` document."""
        transports = self.chosen.transports
        return {**self._without_transports(), "transports": None if transports is None else transports.document()}

    def _without_transports(self) -> dict[str, object]:
        """Return the document but for what other settings of NCCL would give, which takes longest to find."""
        chosen = self.chosen
        return {
            **chosen.step_document(),
            "plan": [bucket.size_bytes for bucket in chosen.plan.buckets],
            "keep_default": self.keep_default,
            "default_iteration_s": self.default.iteration_s,
            "default_step_s": self.default.step_s[0],
            "gain": self.gain,
            "gain_low": self.gain_low,
            "gain_high": self.gain_high,
            "savings": [saving.document() for saving in self.savings],
            "trial": None if self.trial is None else self.trial.document(),
            "best_found": {
                "iteration_s": self.best.iteration_s,
                **dict(zip(("gain", "gain_low", "gain_high"), self.best_gain, strict=True)),
                "torch": self.best.plan.torch,
            },
            "others": [
                {"torch": other.torch, "iteration_s": other.iteration_s, "gain": self.gain_of(other)}
                for other in self.others
            ],
            "gain_from_hidden_comm": self.gain_from_hidden_comm,
            **({} if self.bound is None else self.bound.document()),
            "host_bound": self.host_bound,
            "host_cost_s": self.host_cost_s,
            "priors": [{"name": c.name, "value": c.value, "unit": c.unit, "source": c.source} for c in self.priors],
            "bucket_memory_bytes": 0 if chosen.options.gradient_as_bucket_view else chosen.plan.size_bytes,
            "sweep": [{"bucket_cap_mb": cap, "iteration_s": seconds} for cap, seconds in self.sweep],
        }


def _rate(row: PlanRow) -> tuple[bool, float, int]:
    return row.fits is not False, row.chosen.samples_per_s, -row.chosen.summary.world_size


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A report holds the rows by machine and node count.

    Attributes:
        of: the workload, as its file names it; None is as the first row has it.
    """

    rows: tuple[PlanRow, ...]
    of: str | None = None

    @property
    def name(self) -> str:
        """The workload's name, whatever GPUs it was put on."""
        return self.of or self.rows[0].chosen.workload.name

    def __repr__(self) -> str:
        return f"<PlanReport: {format_count(len(self.rows), 'row')}, best {self.best!r}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row a machine and node count, and the line to paste."""
        return table_of("plan: notebook", [row.describe() for row in self.rows]).html(SCREEN)

    @property
    def best(self) -> PlanRow | None:
        """The row with the most samples a second; the fewest ranks among equals. None where no row may be ranked.

        One that does not fit its GPUs is best only where none fits.
        """
        return max(list_rankable(self.rows, lambda row: row.chosen), key=_rate, default=None)

    @property
    def written(self) -> PlanRow:
        """The row whose plan a file is to hold: the best, or of one machine that is not ranked its fastest.

        Raises:
            InputError: several machines of which none may be ranked.
        """
        if self.best is not None:
            return self.best
        if len({row.chosen.topology.name for row in self.rows}) > 1:
            what = "none of these machines is ranked, so that none has the plan to be written"
            remedy = "plan one machine at a time, or a workload that can be estimated for each"
            raise InputError(what, place="out", remedy=remedy)
        return max(self.rows, key=_rate)

    def records(self) -> list[dict[str, object]]:
        """Return the rows of the `plan` document, each flat, for `pandas.DataFrame`."""
        return [flat(row.document()) for row in self.rows]

    def document(self) -> dict[str, object]:
        """Return the `plan` document."""
        best = self.best
        return {"rows": [row.document() for row in self.rows], "best": None if best is None else best.document()}
