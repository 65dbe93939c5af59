"""Bytes or latency: what messages of one size leave open of the time of others, and so of what other buckets gain."""

from __future__ import annotations

from ddpsim.collectives.calibration import Calibration, CurvePoint
from ddpsim.collectives.execute import make_transport
from ddpsim.doubts.doubt import Effect
from ddpsim.operations import Operation
from ddpsim.prediction.predict import with_assumptions
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions, WireFactor
from ddpsim.units import MIB

_ENDS = (0.1, 0.9)
"""Shares of a collective's time that do not grow with its bytes: where nothing tells, any from none to all is as
likely, and 80 % of them lie between these."""
_REMEDY = "trace a few steps with half the bucket_cap_mb, or give the machine and --nccl-tests"


def one_size_doubt(
    now: Prediction, other: Prediction, gain: float, known: CurvePoint, calibration: Calibration | None
) -> tuple[Effect, ...]:
    """Return what it changes of `gain` whether the traced time of messages of one size is bytes or latency.

    Args:
        now: with the traced buckets.
        other: with those whose gain is in question.
        gain: share of the step that `other` saves.
        known: size and time of the traced messages.
        calibration: that both were predicted with.
    """
    backend = now.options.backend_for(now.workload)
    transport = make_transport(now.placement, backend, calibration)

    def factor_of(share: float) -> WireFactor:
        def factor(size_bytes: int) -> float:
            time_s = known.time_s * (share + (1 - share) * size_bytes / known.size_bytes)
            return time_s / transport.time_s(Operation.ALLREDUCE, size_bytes)

        return factor

    gains = []
    for share in _ENDS:
        assumed = Assumptions(calibration, factor_of(share))
        now_s, other_s = (with_assumptions(each, assumed).iteration_s for each in (now, other))
        gains.append(1 - other_s / now_s)
    name = f"bytes and latency not told apart by messages of one size, {known.size_bytes / MIB:.2f} MiB,"
    return (Effect(name, _REMEDY, min(gain, *gains), max(gain, *gains)),)
