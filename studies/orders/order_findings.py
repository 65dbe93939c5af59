"""What ideas on the order of gradients are worth.

python -m studies.orders.order_findings bench    # the bench anew, ten minutes on idle cores, into order_findings.json
python -m studies.orders.order_findings lab      # only what is predicted of the runs, two minutes
python -m studies.orders.order_findings          # the page, from that file and from traces/order-runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from ddpsim.common import shipped
from ddpsim.common.files import json_text, write_whole
from ddpsim.planning.order_bench import Bench, BenchMachine, bench
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.job_options import DropBuckets
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from ddpsim.workload.order_trace import OrderTrace, load_order_trace
from studies.command import parser
from studies.orders import codec_findings, drop_runs, variation_findings
from studies.orders import order_tables as tables
from studies.orders.generated import generate_trace, statistics_of
from studies.orders.order_tables import Row

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("order-findings.md")
KEPT = Path(__file__).with_name("order_findings.json")
RUNS = ROOT / "traces" / "order-runs"

STEPS = 60
RATIOS = (0.5, 1.0, 2.0)
POLICIES = ("drift:0.95:20", "drift:1:1")
PREDICTORS = ("last", "mean", "exponential", "branch", "context")
LARGE = ("ranks=64,unused=0.3", "ranks=64,unused=0.3,contexts=4,persistence=0", "ranks=256,unused=0.3,steps=30")
SEARCHING = ", searching"
"""Behind the name of a trace without missing gradients that is run under `--find-unused-parameters` all the same."""
RUN = (
    *((name, "lab-plain", ratio, 160) for name in ("dynamic-depth", "branches", "tasks") for ratio in RATIOS),
    *((f"branches{SEARCHING}", "lab-plain", ratio, 160) for ratio in RATIOS),
    ("branches", "lab-slow", 1.0, 80), ("tasks", "lab-slow", 2.0, 80), ("tasks", "lab-slow", 1.0, 80),
    (f"branches{SEARCHING}", "lab-slow", 1.0, 80),
)  # fmt: skip
"""What is run for real: traces in which the most is to be gained, networks, ratios, and steps of each arm. A link of a
quarter of the rate makes steps four times as long, beside which what Python takes of two cores weighs a quarter."""
SHARES = (0.1, 0.25, 0.5)
"""Chances of leaving out each of the layers that may be."""


def of_trace(task: tuple[str, float]) -> list[dict[str, Any]]:
    """Return the rows of one kept trace at one ratio."""
    name, ratio = task
    trace = load_order_trace(shipped.path("order trace", name)).first(STEPS)
    once = rows_of(trace, "lab-flat", ratio, ("once",), ("mean",))  # after one backward all predictors say the same
    return once + rows_of(trace, "lab-flat", ratio, POLICIES, PREDICTORS)


def of_lab(task: tuple[str, str, float, int]) -> list[dict[str, Any]]:
    """Return the rows of what is run for real, on the network that it runs on."""
    name, network, ratio, steps = task
    trace = load_order_trace(shipped.path("order trace", name.removesuffix(SEARCHING))).first(steps)
    policies, topology = ("never", "once", *POLICIES), str(RUNS / f"{network}.yaml")
    rows = rows_of(trace, topology, ratio, policies, ("mean", "context"), name.endswith(SEARCHING))
    return [{**row, "trace": name} for row in rows]


def of_large(text: str) -> list[dict[str, Any]]:
    """Return the rows of a generated trace, on a machine of eight-GPU nodes' hosts."""
    rows = rows_of(
        generate_trace(statistics_of(text)), "p3dn.24xlarge", 1.0, ("once", "drift:1:1"), ("mean", "context")
    )
    return [{**row, "trace": text} for row in rows]


def rows_of(
    trace: OrderTrace,
    topology: str,
    ratio: float,
    policies: Sequence[str],
    predictors: Sequence[str],
    search: bool = False,
) -> list[dict[str, Any]]:
    """Return the bench's rows with the ratio beside them."""
    asked = Bench(
        traces=[trace], machines=[BenchMachine(load_topology(topology), ratio)],
        predictors=predictors, policies=policies,
        find_unused_parameters=search,
    )  # fmt: skip
    return [{**row.document(), "ratio": ratio} for row in bench(asked)]


def of_drop(task: tuple[DropBuckets, float]) -> dict[str, Any]:
    """Return the predicted step with the upper half of BERT-base's layers left out by chance."""
    buckets, share = task
    drop = {f"encoder.layer.{layer}": share for layer in range(6, 12)}
    options = Options(drop=drop, drop_buckets=buckets, iterations=40)
    found = predict(
        Job(load_workload("bert-base"), load_topology("p3dn.24xlarge"), nodes=4, options=options), band=False
    )
    return {"buckets": buckets, "share": share, "iteration_s": found.iteration_s, "local_s": found.local_s}


def collected() -> dict[str, Any]:
    """Return everything that the page says, computed anew."""
    whole = predict(Job(load_workload("bert-base"), load_topology("p3dn.24xlarge"), nodes=4), band=False)
    tasks = [(name, ratio) for name in shipped.names("order trace") for ratio in RATIOS]
    drops = [(kind, share) for share in SHARES for kind in drop_runs.BUCKETS]
    with ProcessPoolExecutor(2) as pool:
        rows = [row for found in pool.map(of_trace, tasks) for row in found]
        large = [row for found in pool.map(of_large, LARGE) for row in found]
        dropped = list(pool.map(of_drop, drops))
        variation = list(pool.map(variation_findings.of_case, variation_findings.TASKS))
    return {
        "rows": rows,
        "large": large,
        "variation": variation,
        "drop": {"rows": dropped, "iteration_s": whole.iteration_s, "local_s": whole.local_s},
    }


def page(found: Mapping[str, Any], measured: Sequence[Row]) -> str:
    """Return the page as Markdown."""
    rows: list[Row] = found["rows"]
    parts = [_HEAD.format(steps=STEPS, worth=f"{tables.WORTH:.0%}")]
    parts += ["## What pays", "", *tables.verdicts(rows, measured), "", *tables.best(rows), "", _PLOT]
    parts += ["", "## By policy and predictor", "", *tables.means(rows, STEPS)]
    parts += ["", "## Measured on the lab", "", _MEASURED, "", *tables.beside(found["lab"], measured)]
    parts += ["", "## Larger worlds", "", _LARGE, "", *tables.larger(found["large"])]
    parts += ["", "## Ranks that differ", "", *variation_findings.lines(found["variation"])]
    parts += ["", "## Layers left out", "", *_dropped(found["drop"]), "", *drop_runs.lines()]
    codecs, losses = (json.loads(path.read_text()) for path in (codec_findings.KEPT, codec_findings.LOSSES))
    parts += ["", "## Compression", "", *codec_findings.lines(codecs, losses)]
    return "\n".join(parts) + "\n"


_PLOT = "![What each policy gains over torch, beside what an oracle would](order-findings.png)"
_HEAD = """# What ideas on the order of gradients are worth

Written by `python -m studies.orders` from `ddpsim order-bench`: the kept order traces (`traces/orders`,
four ranks each), the first {steps} steps, on `lab-flat` with computation scaled so that all messages take 0.5, 1 and 2
times what backward does. Gains are over stock torch, which rebuilds once, or never where gradients are missing
(`find_unused_parameters`), net of conferring and rebuilding, with 90 % intervals. The oracle builds buckets for what
comes next and pays nothing. An idea is *worth it* where the lower end of its gain is {worth} of the step or more. The
recorded models are small: a cap of an eighth of their gradients stands for torch's 25 MiB.
"""
_MEASURED = """`python -m ddpexec netlab --ranks 4 --rate 1gbit -- python -m ddpexec order-run --trace T --topology
traces/order-runs/lab-plain.yaml --wire-over-backward W --rounds 8` (`lab-slow`: `--rate 250mbit`, `--rounds 4`)
replays the trace with timed layers, arms in turns, four ranks on two cores. Predictions were committed before the
runs; other work ran meanwhile at lower priority (load 12 to 30), so that medians stand here (`tasks` at 0.5 and
`branches` at 0.5 and 2 ran alone, in two to four rounds). `never` is torch's
buckets under our own class. The measured oracle pays for its rebuilds, the predicted one does not.

The runs on `lab-plain`, and `tasks` at 2 on `lab-slow`, are of an executor whose rebuild allocated buffers anew: 10
to 20 ms a step where the prediction takes 1. There `drift:0.95:20`, which rebuilds once or twice, gains what is
predicted of it on `dynamic-depth` at 0.5 and 1, and less than that at 2 and on `tasks`. Policies that rebuild for
every batch (`drift:1:1`) gain 6 to 15 % on `dynamic-depth` at 0.5 and 1, where 13 to 22 % are predicted, and
elsewhere nothing that is beyond its interval.

`branches` and `tasks` at 1 on `lab-slow` were run again, with nothing beside, since buckets are slices of one arena
and a rebuild is a table: 2 ms for ResNet-152 (`python -m studies.benchmarks.rebuild`). A policy that rebuilds for
every batch now gains what it had not, between 2 and 3 %, with intervals above nothing: 60 % of what the oracle gains
in the same run on `branches` and on `tasks`, 81 % on `branches` under the search. At least 3 % of the step is
measured on `dynamic-depth` alone."""
_LARGE = """Drawn traces (`python -m studies.orders.generated`) on `p3dn.24xlarge` hosts, a rank a node, messages over
backward at 1."""


def _dropped(found: Mapping[str, Any]) -> Iterator[str]:
    whole_s = found["iteration_s"]
    yield (
        "Predicted for `bert-base` on four nodes of `p3dn.24xlarge`: each of the upper six layers left out by chance. "
        f"The whole step takes {1e3 * whole_s:.1f} ms, {1e3 * found['local_s']:.1f} ms on one GPU without DDP. Gains "
        "are of the mean step."
    )
    yield ""
    yield "| chance | one GPU | torch's buckets | `aligned` | `remapped` |"
    yield "|--:|--:|--:|--:|--:|"
    for share in SHARES:
        own = {row["buckets"]: row for row in found["rows"] if row["share"] == share}
        alone = 1 - own["mixed"]["local_s"] / found["local_s"]
        gains = " | ".join(
            f"{1 - own[kind]['iteration_s'] / whole_s:+.1%}" for kind in ("mixed", "aligned", "remapped")
        )
        yield f"| {share:g} | {alone:+.1%} | {gains} |"


def measured_runs() -> list[dict[str, Any]]:
    """Return the rows of the kept runs, with their ratio; the name of a file tells whether it searched."""
    found = []
    for path in sorted(RUNS.glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            name = row["trace"] + (SEARCHING if path.stem.endswith("-search") else "")
            found.append({**row, "trace": name, "ratio": float(row["machine"].rpartition(" at ")[2])})
    return found


def predicted_lab() -> list[dict[str, Any]]:
    """Return what is predicted of the runs."""
    with ProcessPoolExecutor(2) as pool:
        return [row for found in pool.map(of_lab, RUN) for row in found]


def kept() -> dict[str, Any]:
    """Return the bench that is kept."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def text() -> str:
    """Return the page of what is kept."""
    return page(kept(), measured_runs())


def main(arguments: Sequence[str]) -> None:
    """Compute the bench anew, or what is predicted of the runs alone, and keep it."""
    asked = parser(__doc__)
    asked.add_argument("what", choices=["bench"], nargs="?", help="the bench too")
    given = asked.parse_args(arguments)
    found = kept()
    if given.what:
        found |= collected()
    found["lab"] = predicted_lab()
    write_whole(KEPT, json_text(found).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
