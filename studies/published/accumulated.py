"""Published steps that accumulate gradients, predicted: `python -m studies.published.accumulated`.

Eight RTX PRO 6000 in one machine, buckets of 25 MiB, four micro-batches a step that reduce each or the last alone; the
pace is that of the page's one-GPU step less its fused AdamW, which is counted. No measurement of the network goes in,
and nothing is fitted to these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from studies.command import parser
from studies.published.gpu_steps import prediction
from studies.published.gpu_systems import cases, step_s, system_named

UNDISTURBED = remove_overlap_costs("nccl", None)
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
    system = system_named("rtxpro6000")
    for dtype, row in cases(system):
        if row["bucket_cap_mb"] == "25.0":
            found = prediction(system, dtype, row, calibration=constants, local=True)
            yield Row(found.options.accumulate, found.options.sync, step_s(system, row), found)


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
    parser(__doc__).parse_args()
    main()
