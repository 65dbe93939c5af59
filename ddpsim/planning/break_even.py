"""Break-evens of a comparison: the rate from which a link no longer matters, the nodes up to which it scales.

Start at `Search.rates` and `Search.nodes`. Each break-even is where a curve that falls with the rate, or the node
count, crosses zero (`crossing.py`); every point of a curve is a prediction, cached by `_prediction`. A comparison has
several of these searches a machine, so that bands are made only where they decide something: the factors and numbers
below, chosen by hand, trade accuracy for fewer predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.common.units import MIB
from ddpsim.planning.best_buckets import choose_buckets, pipeline_plan, rests_on_buckets, try_buckets
from ddpsim.planning.bound import binding_link
from ddpsim.planning.comparison_row import ComparisonRow, efficiency_of
from ddpsim.planning.crossing import banded_crossing
from ddpsim.planning.worth import WORTH_IT, Trial, is_list_worth_it
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.doubts import join
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.doubts.doubt import Effect
from ddpsim.prediction.periods import with_assumptions
from ddpsim.prediction.predict import gain_band, predict
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.bounds import MOST_NODES
from ddpsim.topology.graph import Cluster
from ddpsim.topology.link_rates import NIC, with_link_rate
from ddpsim.trace.metrics import Summary

What = Literal["hidden", "link", "buckets", "efficiency"]

HIDDEN = 0.01
"""Share of a step below which communication that is waited for counts as hidden."""

SLOWEST, FASTEST = 0.125e9, 200e9
"""Rates of a NIC between which a break-even is sought, bytes a second: 1 Gb/s, and 1.6 Tb/s, twice what is sold."""

_APART, _BUCKETS_APART, _FAR_APART = 4.0, 8.0, 16.0
"""Factors between rates, or node counts, at which bands are looked at, other buckets, and bands of steps of `_MANY`
gradients; chosen by hand."""

_UNMOVED = 1e-3
"""Share of the step below which a doubt is left out of the band of exposed communication: a tenth of `HIDDEN`."""

_CAPS_MB = (10.0, 60.0)
"""Caps tried at other rates, with torch's own, one bucket and the best list, in MiB; chosen by hand."""

_OCTAVES = (0.5, 2.0)
"""Octaves between the two points that the end of a band is interpolated between, and of steps of `_MANY` gradients."""

_MANY = 1000
"""Gradients of a step, of all its micro-batches, above which buckets are tried at the machine's own rate alone, and
bands are made farther apart: one takes over a second then. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A rate of the NICs, or a number of nodes, at which something stops to hold.

    Attributes:
        row: that it belongs to.
        what: `hidden`: the rate from which under 1 % of the step waits for communication; `link`: from which still
            faster NICs shorten it by under 1 %; `buckets`: from which the best buckets gain under 1 %; `efficiency`:
            the most nodes whose scaling efficiency is not below the bound.
        value: as expected, in bytes per second or nodes; None where there is no such point.
        low, high: of rates, below which it surely does not hold and from which it surely does; of nodes, up to which
            it surely does and beyond which it surely does not; of buckets, what `value` lies between. None where
            that is not known of any that is looked at.
        why: in words, where there is none.
        advised: of buckets, the line to paste at the machine's own rate and its gain, as `plan` finds them.
        trial: of buckets, what is worth one trial run there.
    """

    row: ComparisonRow
    what: What
    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    advised: tuple[str, Band] | None = None
    trial: Trial | None = None

    def __repr__(self) -> str:
        band = f"({self.low or 0:.4g} to {self.high or math.inf:.4g})"
        where = self.why if self.value is None else f"{self.value:.4g} {band}"
        return f"<BreakEven: {self.what} on {self.row.machine}, {where}>"

    def document(self) -> dict[str, object]:
        """Return the break-even as JSON values."""
        key = "nodes" if self.what == "efficiency" else "rate_Bps"
        plan: dict[str, object] = {}
        if self.advised is not None:
            line, (gain, low, high) = self.advised
            plan = {"torch": line, "gain": gain, "gain_low": low, "gain_high": high}
            plan["trial"] = None if self.trial is None else self.trial.document()
        return {
            "topology": self.row.prediction.topology.name,
            "machine": self.row.machine,
            "model": self.row.model,
            "precision": self.row.prediction.workload.precision,
            "batch_size": self.row.batch_size,
            "at_nodes": None if self.what == "efficiency" else self.row.nodes,
            "what": self.what,
            key: self.value,
            f"{key}_low": self.low,
            f"{key}_high": self.high,
            "why": self.why or None,
            **plan,
        }


@dataclass(slots=True)
class Search:
    """A search predicts a row again at other rates and node counts, each once, with its band only where it is used.

    Args:
        row: of the comparison.
        calibration: that it was predicted with.
    """

    row: ComparisonRow
    calibration: Calibration | None
    _made: dict[tuple[float | None, int, int, bool], Prediction] = field(init=False, default_factory=dict)

    def rates(self) -> Iterator[BreakEven]:
        """Yield the break-evens of the NICs' rate; none where the row has one node, or nodes without NICs."""
        template = self.row.prediction.placement.classes[0].template
        if self.row.nodes == 1 or not template.nics:
            return
        # First, for its predictions with bands serve `_hidden` too, which needs none.
        link = self._describe_at_rate("link", self._slower_than_fastest, lambda: "at any rate, even the slowest")
        yield self._hidden()
        yield link
        yield self._buckets(max(nic.bandwidth for nic in template.nics))

    def nodes(self, bound: float) -> BreakEven:
        """Return the most nodes whose scaling efficiency is `bound` or more."""
        topology = self.row.prediction.topology
        most = MOST_NODES if topology.elastic else topology.nodes
        most = min(most, MOST_NODES_SOUGHT)

        def curve(nodes: float, *, band: bool) -> Band:
            prediction = self._prediction(None, max(round(nodes), 1), band=band)
            shares = efficiency_of(prediction) if band else (prediction.scaling_efficiency,) * 3
            middle, low, high = (share - bound for share in shares)
            return middle, low, high

        # Nodes are whole, and the curve is in steps: floors of where it crosses.
        one = curve(1, band=False)[0] + bound
        if one < bound:
            return BreakEven(self.row, "efficiency", why=f"one node is at {_percent(one)} already")
        value, low, high = self._find(curve, 1, most)
        value, low, high = (None if each is None else float(math.floor(each)) for each in (value, low, high))
        last = "" if value is not None else _percent(curve(most, band=False)[0] + bound)
        return BreakEven(self.row, "efficiency", value, low, high, why=last and f"not up to {most} nodes, at {last}")

    def _describe_at_rate(self, what: What, curve: _Curve, never: Callable[[], str]) -> BreakEven:
        value, low, high = self._find(curve, SLOWEST, FASTEST)
        why = ""
        if value is None:
            why = "at any rate, even 1 Gb/s" if curve(SLOWEST, band=False)[0] <= 0 else never()
        return BreakEven(self.row, what, value, low, high, why)

    def _find(self, curve: _Curve, least: float, most: float) -> tuple[float | None, float | None, float | None]:
        """Return where a curve, and the low and the high end of its band, fall through zero.

        None is where the curve does nowhere, where its low end is below zero everywhere, and its high end above.
        """
        points = [least]
        while points[-1] < most:
            points.append(min(points[-1] * (_FAR_APART if self._is_long else _APART), most))
        narrow = _OCTAVES[self._is_long]
        banded, plain = (lambda at: curve(at, band=True)), (lambda at: curve(at, band=False)[0])
        middle, low, high = banded_crossing(banded, plain, points, narrow)
        return (
            middle if 0 < middle < math.inf else None,
            min(low, most) if low > 0 else None,
            max(high, least) if high < math.inf else None,
        )

    @property
    def _is_long(self) -> bool:
        own = self.row.prediction
        return len(own.workload.parameters) * own.options.accumulate > _MANY

    def _hidden(self) -> BreakEven:
        """Return the rate from which communication is hidden.

        The band of exposed communication is made once, at the rate where the curve crosses, and is taken to be as wide
        at every rate. It is no band of the step: each doubt is simulated there for what it does to the part that waits.
        """

        def middle(rate: float) -> float:
            return self._exposed(self._prediction(rate, self.row.nodes)) - HIDDEN

        below = above = 0.0
        at, _, _ = self._find(lambda rate, *, band: (middle(rate),) * 3, SLOWEST, FASTEST)
        if at is not None:
            own = self.row.prediction
            far = _UNMOVED * own.iteration_s
            unmoved = {each.name for each in own.ends if max(abs(s - own.iteration_s) for s in each.steps_s) < far}
            prediction, effects = self._prediction(at, self.row.nodes), list[Effect]()
            share = self._exposed(prediction)
            for doubt in doubts_of(
                prediction.workload,
                prediction.placement,
                prediction.options,
                self.calibration,
                [b.size_bytes for b in prediction.plan.buckets],
            ):
                if doubt.name in unmoved:
                    continue
                ends = [each for each in (doubt.low, doubt.high) if each is not None]
                shares = [self._exposed(prediction, with_assumptions(prediction.run, each)) for each in ends]
                effects.append(join.effect(doubt, share, shares))
            below, above = (end - share for end in join.band(share, effects))

        def curve(rate: float, *, band: bool) -> Band:
            value = middle(rate)
            return value, value + below, value + above

        return self._describe_at_rate("hidden", curve, self._never_hidden)

    def _exposed(self, prediction: Prediction, summary: Summary | None = None) -> float:
        """Return the share of the step that waits for communication."""
        s = prediction.summary if summary is None else summary
        return (s.exposed_comm_s + s.buffer_broadcast_s) / s.iteration_s

    def _never_hidden(self) -> str:
        prediction = self._prediction(FASTEST, self.row.nodes)
        link, _ = binding_link(prediction, self.calibration)
        share = _percent(self._exposed(prediction))
        return f"at no rate: even at 1.6 Tb/s {share} of the step waits, for {link or 'latency or NCCL threads'}"

    def _slower_than_fastest(self, rate: float, *, band: bool) -> Band:
        at, fastest = (self._prediction(each, self.row.nodes, band=band) for each in (rate, FASTEST))
        gain = 1 - fastest.iteration_s / at.iteration_s
        ends = gain_band(at, fastest) if band else (gain, gain)
        middle, low, high = (1 / (1 - min(each, 1 - 1e-9)) - 1 - WORTH_IT for each in (gain, *ends))
        return middle, low, high

    def _buckets(self, own_rate: float) -> BreakEven:
        """Return what `plan` advises at the machine's own rate, and from which rate on other buckets gain under 1 %.

        Followed is the nearest change from the machine's own rate, in large steps: towards faster NICs where buckets
        matter here, else towards slower ones.
        """
        own = self.row.prediction
        options = replace(own.options, caps=BucketCaps(), plan=None)
        same = (own.options.caps, own.options.plan) == (options.caps, options.plan)
        job = self._job(own.topology, options)
        default = own if same else predict(job, local_s=own.local_s)
        row = choose_buckets(Answers(like=[(job, default)]), job, default)
        matters = row.best_gain[0] >= WORTH_IT
        break_even = partial(BreakEven, self.row, "buckets", advised=(row.advice, row.gain_band), trial=row.trial)
        if self._is_long:
            return break_even(why=f"{'these gain' if matters else 'other sizes gain under'} 1 % at that rate")
        before, rate, gain, rates = own_rate, own_rate, row.best_gain[0], list[float]()
        while SLOWEST < rate < FASTEST:
            rate = min(rate * _BUCKETS_APART, FASTEST) if matters else max(rate / _BUCKETS_APART, SLOWEST)
            rates.append(rate)
        for rate in rates:
            gain_before, gain = gain, self._gain_of_buckets(rate)
            if (gain >= WORTH_IT) is not matters:
                share = (WORTH_IT - gain_before) / (gain - gain_before)
                low, high = sorted((before, rate))
                return break_even(before * (rate / before) ** share, low, high)
            before = rate
        why = "these gain 1 % at every faster rate too" if matters else "others gain under 1 % at every slower rate too"
        return break_even(why=why)

    def _gain_of_buckets(self, rate: float) -> float:
        """Return the share of the step that the best buckets of those that are tried save at a rate."""
        wired = with_link_rate(self.row.prediction.topology, NIC, rate)
        options = replace(self.row.prediction.options, caps=BucketCaps(), plan=None)
        default = predict(self._job(wired, options), local_s=self.row.prediction.local_s, band=False)
        run, s = default.run, default.summary
        # Buckets save at most all that waits for communication and all that DDP itself costs: often not worth a try.
        most = (s.exposed_comm_s + s.ddp_overhead_s) / default.iteration_s
        if most < WORTH_IT or not rests_on_buckets(run):
            return 0.0
        total_mb = default.workload.gradient_bytes / MIB
        caps = [*(cap for cap in _CAPS_MB if cap < total_mb), math.ceil(total_mb)]
        attempt = partial(try_buckets, run)
        least_s = min(default.iteration_s, *(attempt(BucketCaps(bucket_cap_mb=cap)).iteration_s for cap in caps))
        if (partition := pipeline_plan(default, self.calibration)) is not None:
            listed_s = attempt(BucketCaps(), partition).iteration_s
            if is_list_worth_it(listed_s, least_s, default.iteration_s):
                least_s = listed_s
        return 1 - least_s / default.iteration_s

    def two_nodes(self, ranks: int) -> tuple[float, float, Band]:
        """Return what an iteration of so many ranks takes on one node and on two, and the share that one saves."""
        together, apart = (self._prediction(None, nodes, each=ranks // nodes, band=True) for nodes in (1, 2))
        gain = 1 - together.iteration_s / apart.iteration_s
        return together.iteration_s, apart.iteration_s, (gain, *gain_band(apart, together))

    def _job(self, topology: Cluster, options: Options) -> Job:
        own = self.row.prediction
        each = own.placement.all_gpus_per_node
        return Job(own.workload, topology, self.row.nodes, each, options, self.calibration)

    def _prediction(self, rate: float | None, nodes: int, *, each: int | None = None, band: bool = False) -> Prediction:
        own = self.row.prediction
        place = rate, nodes, each or own.placement.all_gpus_per_node
        # One with its band serves where none is needed.
        for with_band in (True, band):
            if (prediction := self._made.get((*place, with_band))) is not None:
                return prediction
        machine = own.topology if rate is None else with_link_rate(own.topology, NIC, rate)
        prediction = self._made[*place, band] = predict(
            Job(own.workload, machine, nodes, place[2], own.options, self.calibration),
            local_s=own.local_s,
            band=band,
        )
        return prediction


class _Curve(Protocol):
    """A number that falls with its argument; without `band` its middle alone counts."""

    def __call__(self, at: float, /, *, band: bool) -> Band: ...


MOST_NODES_SOUGHT = 1024
"""Nodes up to which scaling is followed; chosen by hand."""


def check_bound(efficiency: float) -> float:
    """Return the bound of an efficiency, from above 0 to below 1.

    Raises:
        InputError: it is no such share.
    """
    if not 0 < efficiency < 1:
        remedy = "write a share of one GPU's speed, e.g. 80%"
        raise InputError(f"{efficiency:.0%} is no bound of an efficiency", place="efficiency", remedy=remedy)
    return efficiency


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
