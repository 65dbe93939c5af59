"""What many ranks lose: published steps of 8 to 256 GPUs, each over the step of the fewest of its series.

`python -m studies.published.many_ranks` prints every row, by series, and the two halves; `--fit` derives `node_spread`
of each GPU from the choosing half. Whole copies and sharded ones. A series is predicted at the pace at which its row of
the fewest GPUs is what was measured; what is judged is how much longer a step of more of them takes. Every other series
by name judges, and all that were found later (`LATER`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from statistics import fmean, median

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import GIVEN
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.representatives import RankKind
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named
from studies.accuracy.rows import read_rows
from studies.accuracy.systems import machine
from studies.command import parser
from studies.published.step_workloads import known, transformer

ROWS = Path(__file__).with_name("steps") / "many_ranks.csv"

UPDATED_BYTES = 28
"""Bytes that Adam moves of an fp32 parameter: it reads it, its gradient and two moments, and writes all but one."""

PACED = 3
"""Times that the pace is set anew: each leaves a few parts in a hundred of what was off."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where series were measured, and how their models were sharded.

    Attributes:
        machine, gpu: of eight GPUs a node.
        scheme: as `--scheme` takes it.
    """

    machine: str
    gpu: str
    scheme: str


CLUSTERS: Mapping[str, Cluster] = {
    "gpt-a100": Cluster("oci-bm-gpu4", "A100-80GB", "fsdp2:gather=bf16,reduce=fp32"),
    "dlperf-v100": Cluster("dlperf-v100", "V100", "ddp"),
    "mpt-a100": Cluster("oci-bm-gpu4", "A100", "fsdp2:gather=bf16,reduce=bf16"),
    "mpt80-a100": Cluster("oci-bm-gpu4", "A100-80GB", "fsdp2:gather=bf16,reduce=bf16"),
    "mpt-h100": Cluster("dgx-h100-roce", "H100", "fsdp2:gather=bf16,reduce=fp32"),
    "titan-h100": Cluster("dgx-h100-roce", "H100", "fsdp2:gather=bf16,reduce=fp32"),
}
"""By the first two parts of a series' name."""

WIDTHS = {"125m": (768, 12), "350m": (1024, 24), "760m": (1536, 24), "1b": (2048, 24), "3b": (2560, 32),
          "7b": (4096, 32), "13b": (5120, 40), "30b": (7168, 48)}  # fmt: skip
"""Width and layers of MPT's sizes, whose counts of parameters are those of the page."""

CHECKPOINTED = ("mpt-a100-7b", "mpt-a100-13b", "mpt80-a100-7b", "mpt80-a100-13b", "gpt-a100")
"""Beginnings of the names of those whose layers' forward is computed again."""

LATER = ("gpt-a100", "mpt80-a100")
"""Clusters whose series were found later and predicted before anything was chosen on them: all of theirs judge."""


@dataclass(frozen=True, slots=True)
class Series:
    """Steps of one job on ever more GPUs.

    Attributes:
        measured_s: by GPUs, ascending.
    """

    name: str
    measured_s: Mapping[int, float]

    @property
    def cluster(self) -> Cluster:
        """Where it was measured."""
        return CLUSTERS[self._cluster]

    @property
    def later(self) -> bool:
        """Whether it was found after the halves were made."""
        return self._cluster in LATER

    @property
    def _cluster(self) -> str:
        return "-".join(self.name.split("-")[:2])

    def workload(self, one_s: float) -> Workload:
        """Return its job at a step of `one_s` without communication."""
        _, _, model, *_ = self.name.split("-")
        if model == "resnet50":
            return known(load_workload("resnet50"), one_s)
        shapes = llama() if model == "8b" else mpt(*WIDTHS[model])
        layers, layer, rest = shapes
        count = layers * sum(map(prod, layer)) + sum(map(prod, rest))
        update_s = UPDATED_BYTES * count / gpu_named(self.cluster.gpu).with_fitted().achieved_Bps
        return transformer(
            one_s=one_s + update_s, dtype="float32", gpu=self.cluster.gpu, layers=layers, layer=layer, before=rest[:-1],
            after=rest[-1:], optimizer=f"{update_s}s", checkpointed=self.name.startswith(CHECKPOINTED),
        )  # fmt: skip


Shapes = tuple[int, list[list[int]], list[list[int]]]
"""How many layers, the shapes of the parameters of one, and of those beside the layers."""


def mpt(width: int, layers: int) -> Shapes:
    """Return an MPT's shapes: no biases, tied embeddings, places that are learned."""
    layer = [[width], [3 * width, width], [width, width], [width], [4 * width, width], [width, 4 * width]]
    return layers, layer, [[50368, width], [2048, width], [width]]


def llama() -> Shapes:
    """Return the shapes of Llama 3.1 8B."""
    width, inner, narrow = 4096, 14336, 1024
    layer = [[width], [width, width], [narrow, width], [narrow, width], [width, width], [width]]
    return 32, [*layer, [inner, width], [width, inner], [inner, width]], [[128256, width], [128256, width], [width]]


@dataclass(frozen=True, slots=True)
class Loss:
    """How much longer a step of more GPUs takes than that of the fewest of its series.

    Attributes:
        gpus, fewest: of the two steps.
        measured, predicted: as shares of the step of the fewest.
    """

    series: str
    gpus: int
    fewest: int
    measured: float
    predicted: float


def series() -> list[Series]:
    """Return every series, by name."""
    grouped = groupby(read_rows(ROWS), key=lambda row: row["series"])
    return [Series(name, {int(row["gpus"]): float(row["step_ms"]) * 1e-3 for row in rows}) for name, rows in grouped]


def judging(each: Sequence[Series]) -> set[str]:
    """Return the names of those that judge: every other one, and all that were found later."""
    first = sorted(one.name for one in each if not one.later)
    return {*first[1::2], *(one.name for one in each if one.later)}


def predicted_s(one: Series, one_s: float, gpus: int, calibration: Calibration | None = None) -> float:
    """Return the predicted step of `one` on `gpus` GPUs, at a pace of `one_s` a step."""
    cluster = one.cluster
    found = predict(
        Job(
            one.workload(one_s),
            machine(cluster.machine),
            nodes=gpus // 8,
            options=Options(scheme=cluster.scheme),
            calibration=calibration,
        ),
        band=False,
        local_s=1.0,
    )
    return found.iteration_s


def losses(one: Series, calibration: Calibration | None = None) -> list[Loss]:
    """Return what each row of a series but the first loses."""
    fewest, *more = sorted(one.measured_s)
    base_s = one_s = one.measured_s[fewest]
    for _ in range(PACED):
        one_s *= base_s / predicted_s(one, one_s, fewest, calibration)
    began_s = predicted_s(one, one_s, fewest, calibration)
    then_s = {gpus: predicted_s(one, one_s, gpus, calibration) for gpus in more}
    return [
        Loss(one.name, gpus, fewest, one.measured_s[gpus] / base_s - 1, step_s / began_s - 1)
        for gpus, step_s in then_s.items()
    ]


ALIKE = Calibration.priors("nccl").with_values({"nccl.ddp.node_spread": 0.0}, source=GIVEN)
_SPREADS = [0.001 * n for n in range(151)]


def slowest(one: Series, gpus: int, node_spread: float) -> float:
    """Return how many times longer the slowest of so many of a series' GPUs is expected to take than the median."""
    workload, spread = one.workload(1.0), Costs.of("nccl", None, one.cluster.gpu).pace_spread
    return RankKind(range(gpus), workload, (), spread, node_spread=node_spread, nodes=gpus // 8).slowest()


def fitted(each: Sequence[tuple[Series, Sequence[Loss]]]) -> float:
    """Return the `node_spread` of least mean squared error, series alike.

    Args:
        each: series, and what they lose where nodes are alike.
    """

    def error(one: Series, alike: Sequence[Loss], spread: float) -> float:
        least = slowest(one, alike[0].fewest, spread) / slowest(one, alike[0].fewest, 0.0)
        more = [slowest(one, loss.gpus, spread) / slowest(one, loss.gpus, 0.0) / least for loss in alike]
        pairs = zip(alike, more, strict=True)
        return fmean(((1 + loss.predicted) * factor - 1 - loss.measured) ** 2 for loss, factor in pairs)

    return min(_SPREADS, key=lambda spread: fmean(error(one, alike, spread) for one, alike in each))


def fit(each: Sequence[Series]) -> Iterator[str]:
    """Yield the `node_spread` of each GPU, from the series that may be chosen on."""
    judges = judging(each)
    chosen = [(one, losses(one, ALIKE)) for one in each if one.name not in judges]
    for gpu in dict.fromkeys(one.cluster.gpu for one, _ in chosen):
        own = [(one, alike) for one, alike in chosen if one.cluster.gpu == gpu]
        yield f"{gpu}: node_spread {fitted(own):.3f} ({', '.join(one.name for one, _ in own)})"


HALVES = ("choosing", "judging", "judging, 64 GPUs and more", "of these found later")


def lines(found: Sequence[Loss], judges: set[str]) -> Iterator[str]:
    """Yield the lines of the tables: a row each, then the halves."""
    yield "| series | half | GPUs | over | loses, measured | predicted |"
    yield "|---|---|--:|--:|--:|--:|"
    halves: dict[str, list[Loss]] = {name: [] for name in HALVES}
    for loss in found:
        half = "judging" if loss.series in judges else "choosing"
        halves[half].append(loss)
        if half == "judging" and loss.gpus >= 64:
            halves["judging, 64 GPUs and more"].append(loss)
            if loss.series.startswith(LATER):
                halves["of these found later"].append(loss)
        cells = (loss.series, half, loss.gpus, loss.fewest, f"{loss.measured:.1%}", f"{loss.predicted:.1%}")
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""
    yield "| half | rows | loses, measured, in the mean | predicted | of it | median miss | within 1 % of the step |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for half, own in halves.items():
        if own:
            measured, told = (fmean(getattr(loss, name) for loss in own) for name in ("measured", "predicted"))
            misses = [abs(loss.predicted - loss.measured) for loss in own]
            within = f"{sum(miss <= 0.01 for miss in misses)} of {len(own)}"
            shown = (f"{measured:.2%}", f"{told:.2%}", f"{told / measured:.0%}", f"{median(misses):.2%}", within)
            yield f"| {half} | {len(own)} | " + " | ".join(shown) + " |"


HEAD = """# What many ranks lose

Written by `python -m studies.published`; sources stand in `studies/published/steps/many_ranks.csv`. The GPUs of a
series do the same work in each of its rows, on whole copies (DLPerf's ResNet-50) or sharded ones (MPT, Llama 3.1 8B by
FSDP). There is no row of one GPU: a series is predicted at the pace at which its row of the fewest GPUs is what was
measured, and what is judged is how much longer the step of more GPUs takes. Machines are taken from what the pages say
of them.

Every other series by name judges, and all of A100 of 80 GB (`mpt80`, `gpt`), which were found later and predicted
before anything was chosen on them. What nodes differ by (`node_spread`, of A100 and H100) is fitted to the rest
(`python -m studies.published.many_ranks --fit`). The pages' rows are single runs of some ten steps to a hundred.
"""


def text() -> str:
    """Return the page."""
    each = series()
    with ProcessPoolExecutor(2) as pool:
        found = [loss for own in pool.map(losses, each) for loss in own]
    return "\n".join([HEAD, *lines(found, judging(each)), ""])


def main(arguments: Sequence[str]) -> int:
    """Print what the series that are named lose, or all."""
    asked = parser(__doc__)
    asked.add_argument("--fit", action="store_true", help="derive `node_spread` of each GPU from the choosing half")
    asked.add_argument("names", metavar="SERIES", nargs="*", help="print these series; default all")
    given = asked.parse_args(arguments)
    each = series()
    if given.fit:
        print("\n".join(fit(each)))
        return 0
    chosen = [one for one in each if not given.names or one.name in given.names]
    print("\n".join(lines([loss for one in chosen for loss in losses(one)], judging(each))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
