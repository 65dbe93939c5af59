"""Compression's break-even: the rate of the NICs below which sending fewer bytes is worth what encoding them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from ddpsim.common.errors import InputError
from ddpsim.planning.break_even import FASTEST, SLOWEST
from ddpsim.planning.crossing import crossing, crossing_band
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.periods import with_assumptions
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules import compression
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import NIC, with_link_rate

SCHEMES = ("fp16", "powersgd:4", "onebit", "topk:0.01", "adaptive:8")
"""Of each family one; `bf16` costs what `fp16` does."""


@dataclass(frozen=True, slots=True)
class CodecRow:
    """One scheme on one machine.

    Attributes:
        ratio: plain bytes on a link over those of the scheme, as ring allreduces.
        plain_s, step_s: a step without it and with it, at the machine's own rate.
        rate_Bps, rate_low_Bps, rate_high_Bps: of each NIC, below which the scheme is faster, with its 80 % band; None
            where there is no such rate.
        why: in words, where there is none.
        measured: whether what its encoding costs was measured.
    """

    machine: str
    nodes: int
    scheme: str
    ratio: float
    plain_s: float
    step_s: float
    rate_Bps: float | None  # noqa: N815
    rate_low_Bps: float | None  # noqa: N815
    rate_high_Bps: float | None  # noqa: N815
    why: str
    measured: bool

    @property
    def gain(self) -> float:
        """What share of the plain step is saved at the machine's own rate."""
        return 1 - self.step_s / self.plain_s

    def document(self) -> dict[str, object]:
        """Return the row as a JSON object."""
        return {**asdict(self), "gain": self.gain}


@dataclass(slots=True)
class _JobPair:
    """The same job with a scheme and without, at any rate of its NICs."""

    job: Job
    known: dict[tuple[float | None, str], Prediction]

    def predict_at(self, rate: float | None, scheme: str) -> Prediction:
        """Return the prediction with one scheme; no rate is the machine's own."""
        if (rate, scheme) not in self.known:
            options, topology = replace(self.job.options, compression=scheme), self.job.topology
            if rate is not None:
                topology = with_link_rate(topology, NIC, rate)
            self.known[rate, scheme] = predict(replace(self.job, options=options, topology=topology), band=False)
        return self.known[rate, scheme]

    def row(self, scheme: str) -> CodecRow:
        """Return what a scheme is worth."""

        # Falls with the rate: the plain step gets shorter sooner than the compressed one, whose encoding stays.
        def curve(rate: float, end: Assumptions | None) -> float:
            plain, coded = (
                made.iteration_s if end is None else with_assumptions(made.run, end).iteration_s
                for made in (self.predict_at(rate, "none"), self.predict_at(rate, scheme))
            )
            return plain / coded - 1

        rate: float | None = None
        low: float | None = None
        high: float | None = None
        why = ""
        if (break_even := crossing(curve, SLOWEST, FASTEST)) is not None:
            coded = self.predict_at(break_even.at, scheme)
            sizes = [bucket.size_bytes for bucket in coded.plan.buckets]
            # The doubts of the compressed job: those of the plain one are among them.
            doubts = doubts_of(coded.workload, coded.placement, coded.options, self.job.calibration, sizes)
            rate, (low, high) = break_even.at, crossing_band(curve, break_even, doubts, SLOWEST, FASTEST)
        else:
            why = "at no rate, not at 1 Gb/s" if curve(SLOWEST, None) <= 0 else "at any rate, even 1.6 Tb/s"
        plain, coded = self.predict_at(None, "none"), self.predict_at(None, scheme)
        codec, family = coded.options.codec, scheme.partition(":")[0]
        calibration = self.job.calibration
        cost = None if calibration is None else calibration.constants.get(f"{calibration.backend}.ddp.{family}_Bps")
        return CodecRow(
            machine=self.job.topology.name,
            nodes=coded.placement.nodes,
            scheme=codec.name,
            ratio=compression.ratio(codec, self.job.workload.parameters, coded.placement.world_size),
            plain_s=plain.iteration_s,
            step_s=coded.iteration_s,
            rate_Bps=rate,
            rate_low_Bps=low,
            rate_high_Bps=high,
            why=why,
            measured=cost is not None and cost.measured,
        )


def codec_rows(answers: Answers, job: Job, schemes: Sequence[str] = SCHEMES) -> list[CodecRow]:
    """Return a row for each scheme.

    Raises:
        InputError: a machine without NICs, or one node of it, which sends nothing over a link whose rate counts.
        UnknownNameError: no such scheme.
    """
    for scheme in schemes:
        compression.scheme(scheme)
    placement = job.placement
    if placement.nodes == 1 or not placement.classes[0].template.nics:
        what = f"{format_nodes(placement.nodes)} of {job.topology.name} send nothing over a NIC"
        raise InputError(what, place="topology", remedy="give a machine with NICs, and two nodes or more")
    pair = _JobPair(job, {})
    return [answers.ask(CodecRow, partial(pair.row, scheme), job, scheme, "codec") for scheme in schemes]


def format_nodes(nodes: int) -> str:
    """Return how many nodes, in words."""
    return "one node" if nodes == 1 else f"{nodes} nodes"
