"""Published steps that accumulate gradients, predicted: `python -m tests.accuracy.accumulated`.

Eight RTX PRO 6000 in one machine, buckets of 25 MiB, four micro-batches a step that reduce each or the last alone; the
pace is that of the page's one-GPU step less its fused AdamW, which is counted. No measurement of the network goes in,
and nothing is fitted to these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.costs import undisturbed
from ddpsim.workload.files import load_workload
from tests.accuracy.step_workloads import updated
from tests.accuracy.steps_judged import _rows
from tests.accuracy.systems import machine

TABLE = "rtxpro6000_nanogpt124m_ddp_bucket_sweep.csv"
UNDISTURBED = undisturbed("nccl", None)
"""Priors but that computing and communicating at once costs nothing."""

ALIKE = UNDISTURBED.with_values(
    {"nccl.ddp.pace_spread": 0.0, "nccl.ddp.shared_compute_slowdown": 1.0}, source="devices alike, nothing disturbed"
)
"""Nothing but communication and additions stands between a step and as many of one GPU."""


@dataclass(frozen=True)
class Row:
    """A measured step of the optimizer, in seconds, beside its prediction."""

    accumulate: int
    sync: str
    measured_s: float
    predicted: Prediction

    @property
    def predicted_s(self) -> float:
        """The prediction's step."""
        return self.accumulate * self.predicted.iteration_s

    @property
    def over_s(self) -> float:
        """What the predicted step takes over that of one GPU."""
        return self.accumulate * (self.predicted.iteration_s - self.predicted.local_s)

    @property
    def error(self) -> float:
        """Of the step."""
        return self.predicted_s / self.measured_s - 1


def rows(constants: Calibration | None = None) -> Iterator[Row]:
    """Yield the row without accumulation and the two with it, by `constants` or the priors."""
    table = [row for row in _rows(TABLE) if row["bucket_cap_mb"] in ("", "25.0")]
    one_s = next(float(row["step_ms"]) for row in table if row["mode"] == "single") * 1e-3
    shipped = replace(load_workload("gpt2-small@a100-amp-b8"), device="RTXPRO6000")
    workload = updated(shipped, "adamw-fused", one_s)
    for row in table:
        if row["mode"] == "ddp":
            accumulate, sync = int(row["gas"]), "every" if row["no_sync"] == "0" else "last"
            options = Options(
                caps=BucketCaps(bucket_cap_mb=25.0),
                gradient_as_bucket_view=True,
                accumulate=accumulate,
                sync=sync,
            )
            found = predict(workload, machine("8xrtxpro6000"), options=options, calibration=constants, band=False)
            yield Row(accumulate, sync, float(row["step_ms"]) * 1e-3, found)


def main() -> None:
    """Print the rows by the priors, and with devices alike and nothing disturbed."""
    for name, constants in (("priors", None), ("devices alike, nothing disturbed", ALIKE)):
        print(name)
        for row in rows(constants):
            measured_over_s = row.measured_s - row.accumulate * row.predicted.local_s
            print(
                f"  {row.accumulate} x, reduces {row.sync:5}: measured {row.measured_s * 1e3:.1f} ms, "
                f"predicted {row.predicted_s * 1e3:.1f}, {100 * row.error:+.1f} %; "
                f"over one GPU {measured_over_s * 1e3:.1f} and {row.over_s * 1e3:.1f} ms"
            )


if __name__ == "__main__":
    main()
