"""What fewer graphs gain a compiled step under DDP: published steps of eight H200, by cap, beside what is predicted.

`python -m studies.published.compiled_ddp [--json]`. No row of one GPU was published, so that what is judged is how the
step changes with the caps. The step is an estimate of Llama 3.2 1B; nothing is fitted to the rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import GIVEN
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.graph_cuts import GraphCuts
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from ddpsim.workload.replayed import with_optimizer
from studies.accuracy.rows import read_rows

ROWS = Path(__file__).with_name("steps") / "h200_compiled.csv"
MACHINE, GPU, OPTIMIZER = "hgx-h200", "H200", "adamw-fused"
LEFT_OUT = {"nccl.ddp.graph_passes": 0.0}
"""Constants without what crosses a cut."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What of a row decides its step; eight GPUs, gradients in fp32."""

    bucket_cap_mb: int
    find_unused: bool
    batch: int
    accumulate: int


@dataclass(frozen=True, slots=True)
class Change:
    """What larger caps do to a step.

    Attributes:
        caps: MiB, before and after.
        graphs: before and after.
        measured_s, predicted_s: later less earlier step, of the optimizer.
        without_s: predicted where what crosses a cut costs nothing.
        every_s: by which the row's repetitions differ at most, where it was run twice; 0 of single ones.
    """

    batch: int
    find_unused: bool
    caps: tuple[int, int]
    graphs: tuple[int, int]
    measured_s: float
    predicted_s: float
    without_s: float
    every_s: float


def measured() -> dict[Setting, list[float]]:
    """Return the steps of eight GPUs without a hook, by setting, each as often as it was run."""
    found: dict[Setting, list[float]] = {}
    for row in read_rows(ROWS):
        if row["gpus"] == "8" and not row["hook"]:
            setting = Setting(
                int(row["bucket_cap_mb"]), row["find_unused"] == "1", int(row["batch_per_gpu"]), int(row["accum"])
            )
            found.setdefault(setting, []).append(float(row["median_step_s"]))
    return found


@cache
def workload(batch: int) -> Workload:
    """Return the estimated step of a micro-batch of so many sequences."""
    from ddpexec.capturing.estimate import estimate_step
    from studies.published.llama_step import training

    return with_optimizer(estimate_step(partial(training, batch), GPU), OPTIMIZER, clipping=False)


def options_of(setting: Setting) -> Options:
    """Return the options of a job."""
    caps = BucketCaps(bucket_cap_mb=setting.bucket_cap_mb)
    return Options(caps=caps, compiled=True, accumulate=setting.accumulate, find_unused_parameters=setting.find_unused)


@cache
def predicted(setting: Setting, *, left_out: bool = False) -> tuple[float, int]:
    """Return the step of the optimizer and the number of graphs; without what crosses a cut where `left_out`."""
    calibration = Calibration.priors("nccl").with_values(LEFT_OUT, source=GIVEN) if left_out else None
    job = predict(
        Job(workload(setting.batch), load_topology(MACHINE), options=options_of(setting), calibration=calibration),
        band=False,
    )
    cuts: GraphCuts | None = job.graph_cuts
    return job.iteration_s * setting.accumulate, 1 if cuts is None else cuts.graphs


def changes() -> Iterator[Change]:
    """Yield what each larger cap does, of settings that differ in nothing else."""
    steps = measured()
    ordered = sorted(steps, key=lambda each: (each.batch, not each.find_unused, each.bucket_cap_mb))
    for before, after in itertools.pairwise(ordered):
        if (before.batch, before.find_unused) != (after.batch, after.find_unused):
            continue
        pair = before, after
        (first_s, graphs), (later_s, fewer) = (predicted(each) for each in pair)
        first_left_s, later_left_s = (predicted(each, left_out=True)[0] for each in pair)
        yield Change(
            before.batch,
            before.find_unused,
            (before.bucket_cap_mb, after.bucket_cap_mb),
            (graphs, fewer),
            median(steps[after]) - median(steps[before]),
            later_s - first_s,
            later_left_s - first_left_s,
            max(max(steps[each]) - min(steps[each]) for each in pair),
        )


def lines(found: Sequence[Change]) -> Iterator[str]:
    """Yield the table."""
    yield "| find_unused | caps, MiB | graphs | measured, ms | predicted | host alone | runs differ by |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for each in found:
        seconds = (each.measured_s, each.predicted_s, each.without_s)
        cells = [" -> ".join(map(str, pair)) for pair in (each.caps, each.graphs)] + [
            f"{s * 1e3:+.1f}" for s in seconds
        ]
        again = f"{each.every_s * 1e3:.0f}" if each.every_s else "-"
        yield f"| {'yes' if each.find_unused else 'no'} | {' | '.join(cells)} | {again} |"


def main(arguments: Sequence[str]) -> int:
    """Print what each larger cap does."""
    parser = argparse.ArgumentParser(prog="python -m studies.published.compiled_ddp", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one document")
    asked, found = parser.parse_args(arguments), list(changes())
    print(json.dumps([asdict(each) for each in found], indent=1) if asked.json else "\n".join(lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
