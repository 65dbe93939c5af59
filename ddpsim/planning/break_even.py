"""Break-evens of a comparison: the rate from which a link no longer matters, the nodes up to which it scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.doubts.causes import doubts_of
from ddpsim.doubts.doubt import Doubt
from ddpsim.errors import InputError
from ddpsim.planning.best_buckets import CAPS_MB, pipeline_plan
from ddpsim.planning.bound import bound_of
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.crossing import Curve, crossing, crossing_band
from ddpsim.planning.efficiency import local_s
from ddpsim.planning.worth import WORTH_IT
from ddpsim.prediction.predict import predict, with_assumptions
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.communication import Assumptions
from ddpsim.topology.bounds import MOST_NODES
from ddpsim.topology.link_rates import NIC, with_link_rate

What = Literal["hidden", "link", "buckets", "efficiency"]

HIDDEN = 0.01
"""Share of a step below which communication that is waited for counts as hidden."""

SLOWEST, FASTEST = 0.125e9, 200e9
"""Rates of a NIC between which a break-even is sought, bytes a second: 1 Gb/s, and 1.6 Tb/s, twice what is sold."""

_OCTAVE = 2.0


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A rate of the NICs, or a number of nodes, at which something stops to hold.

    Attributes:
        row: that it belongs to.
        what: `hidden`: the rate from which under 1 % of the step waits for communication; `link`: from which still
            faster NICs shorten it by under 1 %; `buckets`: from which the best buckets gain under 1 %; `efficiency`:
            the most nodes whose scaling efficiency is not below the bound.
        value, low, high: with its band, in bytes per second or nodes; None where there is no such point.
        why: in words, where there is none.
    """

    row: ComparisonRow
    what: What
    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""

    def __repr__(self) -> str:
        found = self.why if self.value is None else f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"
        return f"<BreakEven: {self.what} on {self.row.machine}, {found}>"

    def document(self) -> dict[str, object]:
        """Return the break-even as JSON values."""
        key = "nodes" if self.what == "efficiency" else "rate_Bps"
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
        }


@dataclass(slots=True)
class Search:
    """A search predicts a row again at other rates and node counts, each once.

    Args:
        row: of the comparison.
        calibration: that it was predicted with.
    """

    row: ComparisonRow
    calibration: Calibration | None
    _made: dict[tuple[float | None, int, BucketCaps, str | None], Prediction] = field(init=False, default_factory=dict)

    def rates(self) -> Iterator[BreakEven]:
        """Yield the break-evens of the NICs' rate; none where the row has one node, or nodes without NICs."""
        template = self.row.prediction.placement.classes[0].template
        if self.row.nodes == 1 or not template.nics:
            return
        yield self._describe_at_rate("hidden", self._predict_exposed, self._never_hidden)
        yield self._describe_at_rate("link", self._slower_than_fastest, lambda: "never: no rate makes it 1 % slower")
        yield self._buckets()

    def nodes(self, bound: float) -> BreakEven:
        """Return the most nodes whose scaling efficiency is `bound` or more."""
        topology = self.row.prediction.topology
        most = MOST_NODES if topology.elastic else topology.nodes
        most = min(most, MOST_NODES_SOUGHT)

        def curve(nodes: float, end: Assumptions | None) -> float:
            made = self._prediction(None, max(round(nodes), 1))
            if end is None:
                return made.scaling_efficiency - bound
            options = made.options
            alone = replace(
                options,
                scale_compute=options.scale_compute * end.compute,
                scale_host=options.scale_host * end.host,
            )
            return local_s(made.workload, alone) / with_assumptions(made, end).iteration_s - bound

        one = self._prediction(None, 1)
        if one.scaling_efficiency < bound:
            return BreakEven(self.row, "efficiency", why=f"one node is at {_percent(one.scaling_efficiency)} already")
        found = crossing(curve, 1, most)
        if found is None:
            last = self._prediction(None, most).scaling_efficiency
            return BreakEven(self.row, "efficiency", why=f"not up to {most} nodes, at {_percent(last)}")
        made = self._prediction(None, max(round(found.at), 2))
        low, high = crossing_band(curve, found, self._doubts(made), 1, most)
        middle, low, high = (float(max(math.floor(nodes), 1)) for nodes in (found.at, low, high))
        return BreakEven(self.row, "efficiency", middle, low, high)

    def _describe_at_rate(self, what: What, curve: Curve, never: Callable[[], str]) -> BreakEven:
        found = crossing(curve, SLOWEST, FASTEST)
        if found is None:
            slowest = curve(SLOWEST, None) <= 0
            return BreakEven(self.row, what, why="at any rate, even 1 Gb/s" if slowest else never())
        made = self._prediction(found.at, self.row.nodes)
        low, high = crossing_band(curve, found, self._doubts(made), SLOWEST, FASTEST)
        return BreakEven(self.row, what, found.at, low, high)

    def _predict_exposed(self, rate: float, end: Assumptions | None) -> float:
        made = self._prediction(rate, self.row.nodes)
        s = made.summary if end is None else with_assumptions(made, end)
        return (s.exposed_comm_s + s.buffer_broadcast_s) / s.iteration_s - HIDDEN

    def _never_hidden(self) -> str:
        made = self._prediction(FASTEST, self.row.nodes)
        bound = bound_of(made, self.calibration)
        share = _percent(self._predict_exposed(FASTEST, None) + HIDDEN)
        return f"at no rate: at 1.6 Tb/s {share} of the step still waits, by {bound.link or 'latency or threads'}"

    def _slower_than_fastest(self, rate: float, end: Assumptions | None) -> float:
        def step_s(at: float) -> float:
            made = self._prediction(at, self.row.nodes)
            return made.iteration_s if end is None else with_assumptions(made, end).iteration_s

        return step_s(rate) / step_s(FASTEST) - 1 - WORTH_IT

    def _buckets(self) -> BreakEven:
        """Return the rate from which no plan gains 1 %: the highest at which one does, seen from the fastest down."""
        rate, plans = FASTEST, dict[float, tuple[float, Options]]()

        def best(at: float) -> tuple[float, Options]:
            if at not in plans:
                default = self._prediction(at, self.row.nodes, BucketCaps())
                tried = [self._prediction(at, self.row.nodes, BucketCaps(bucket_cap_mb=cap)) for cap in CAPS_MB[1::2]]
                if (partition := pipeline_plan(default, self.calibration)) is not None:
                    listed = replace(default.options, caps=BucketCaps(), plan=partition)
                    tried.append(self._predict_with(at, self.row.nodes, listed))
                fastest = min(tried, key=lambda each: each.iteration_s)
                plans[at] = 1 - fastest.iteration_s / default.iteration_s, fastest.options
            return plans[at]

        while rate > SLOWEST and best(rate)[0] < WORTH_IT:
            rate /= _OCTAVE
        if rate <= SLOWEST:
            return BreakEven(self.row, "buckets", why="they matter at no rate: none gains 1 %")
        if rate == FASTEST:
            gain = _percent(best(rate)[0])
            return BreakEven(self.row, "buckets", why=f"they matter at every rate: {gain} at 1.6 Tb/s")
        chosen = best(rate)[1]

        def curve(at: float, end: Assumptions | None) -> float:
            if end is None:
                return best(at)[0] - WORTH_IT
            default = self._prediction(at, self.row.nodes, BucketCaps())
            other = self._predict_with(at, self.row.nodes, chosen)
            steps = [with_assumptions(each, end).iteration_s for each in (other, default)]
            return 1 - steps[0] / steps[1] - WORTH_IT

        found = crossing(curve, rate, rate * _OCTAVE)
        if found is None:
            return BreakEven(self.row, "buckets", rate, rate, rate * _OCTAVE)
        doubts = self._doubts(self._prediction(found.at, self.row.nodes, BucketCaps()))
        return BreakEven(self.row, "buckets", found.at, *crossing_band(curve, found, doubts, SLOWEST, FASTEST))

    def _prediction(self, rate: float | None, nodes: int, caps: BucketCaps | None = None) -> Prediction:
        options = self.row.prediction.options
        return self._predict_with(rate, nodes, options if caps is None else replace(options, caps=caps, plan=None))

    def _predict_with(self, rate: float | None, nodes: int, options: Options) -> Prediction:
        key = (rate, nodes, options.caps, None if options.plan is None else options.plan.fingerprint())
        if key not in self._made:
            own = self.row.prediction
            wired = own.topology if rate is None else with_link_rate(own.topology, NIC, rate)
            self._made[key] = predict(
                own.workload,
                wired,
                nodes=nodes,
                gpus_per_node=own.placement.all_gpus_per_node,
                options=options,
                calibration=self.calibration,
                local_s=own.local_s,
                band=False,
                brief=True,
            )
        return self._made[key]

    def _doubts(self, made: Prediction) -> list[Doubt]:
        sizes = [bucket.size_bytes for bucket in made.plan.buckets]
        return doubts_of(made.workload, made.placement, made.options, self.calibration, sizes)


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
