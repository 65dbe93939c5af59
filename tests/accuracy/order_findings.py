"""What ideas on the order of gradients are worth: writes docs/reference/order-findings.md.

python -m tests.accuracy.order_findings bench    # the bench anew, ten minutes on idle cores, into order_findings.json
python -m tests.accuracy.order_findings lab      # only what is predicted of the runs, two minutes
python -m tests.accuracy.order_findings          # the page, from that file and from traces/order-runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from ddpsim import shipped
from ddpsim.files import json_text, write_whole
from ddpsim.orderbench import Bench, Machine, bench
from ddpsim.orderbench.generated import generated, statistics_of
from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from ddpsim.workload.order_trace import OrderTrace, load_order_trace

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "reference" / "order-findings.md"
KEPT = Path(__file__).with_name("order_findings.json")
RUNS = ROOT / "traces" / "order-runs"
NETWORK = RUNS / "lab-plain.yaml"

STEPS = 60
RATIOS = (0.5, 1.0, 2.0)
POLICIES = ("drift:0.95:20", "drift:1:1")
PREDICTORS = ("mean", "context")
WORTH = 0.03
"""Share of a step from which an idea counts as worth it."""
LARGE = ("ranks=64,unused=0.3", "ranks=64,unused=0.3,contexts=4,persistence=0", "ranks=256,unused=0.3,steps=30")
RUN = ("dynamic-depth", "branches", "tasks")
"""Traces that are run for real: those in which the most is to be gained."""
ARMS = ("never,last", "drift:0.95:20,mean", "drift:1:1,mean", "drift:1:1,context", "oracle")
"""What is run beside torch, and predicted before."""
ROUNDS = 8
"""Turns of each arm, forth and back: of ten steps each."""
SHARES = (0.1, 0.25, 0.5)
"""Chances of leaving out each of the layers that may be."""

Row = Mapping[str, Any]


def of_trace(task: tuple[str, float]) -> list[dict[str, Any]]:
    """Return the rows of one kept trace at one ratio."""
    name, ratio = task
    trace = load_order_trace(shipped.path("order trace", name)).first(STEPS)
    return rows_of(trace, "lab-flat", ratio, POLICIES, PREDICTORS)


def of_lab(task: tuple[str, float]) -> list[dict[str, Any]]:
    """Return the rows of what is run for real, on the network that it runs on."""
    name, ratio = task
    trace = load_order_trace(shipped.path("order trace", name)).first(2 * 10 * ROUNDS)
    found = rows_of(trace, str(NETWORK), ratio, ("never", *POLICIES), PREDICTORS)
    return [{**row, "machine": f"{NETWORK.stem} at {ratio:g}"} for row in found]


def of_large(text: str) -> list[dict[str, Any]]:
    """Return the rows of a generated trace, on a machine of eight-GPU nodes' hosts."""
    rows = rows_of(generated(statistics_of(text)), "p3dn.24xlarge", 1.0, ("once", "drift:1:1"), ("mean", "context"))
    return [{**row, "trace": text} for row in rows]


def rows_of(
    trace: OrderTrace, topology: str, ratio: float, policies: Sequence[str], predictors: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the bench's rows with the ratio beside them."""
    asked = Bench(
        traces=[trace], machines=[Machine(load_topology(topology), ratio)], predictors=predictors, policies=policies
    )
    return [{**row.document(), "ratio": ratio} for row in bench(asked)]


def of_drop(task: tuple[str, float]) -> dict[str, Any]:
    """Return the predicted step with the upper half of BERT-base's layers left out by chance."""
    buckets, share = task
    drop = {f"encoder.layer.{layer}": share for layer in range(6, 12)}
    options = Options(drop=drop, drop_buckets=buckets, iterations=40)
    found = predict(load_workload("bert-base"), load_topology("p3dn.24xlarge"), nodes=4, options=options, band=False)
    return {"buckets": buckets, "share": share, "iteration_s": found.iteration_s, "local_s": found.local_s}


def collected() -> dict[str, Any]:
    """Return everything that the page says, computed anew."""
    whole = predict(load_workload("bert-base"), load_topology("p3dn.24xlarge"), nodes=4, band=False)
    tasks = [(name, ratio) for name in shipped.names("order trace") for ratio in RATIOS]
    drops = [(kind, share) for share in SHARES for kind in ("mixed", "aligned", "remapped")]
    with ProcessPoolExecutor(2) as pool:
        rows = [row for found in pool.map(of_trace, tasks) for row in found]
        large = [row for found in pool.map(of_large, LARGE) for row in found]
        dropped = list(pool.map(of_drop, drops))
    return {
        "rows": rows,
        "large": large,
        "drop": {"rows": dropped, "iteration_s": whole.iteration_s, "local_s": whole.local_s},
    }


def page(found: Mapping[str, Any], measured: Sequence[Row]) -> str:
    """Return the page as Markdown."""
    rows: list[Row] = found["rows"]
    parts = [_HEAD.format(steps=STEPS, worth=f"{WORTH:.0%}")]
    parts += ["## What pays", "", *_verdicts(rows), "", *_best(rows)]
    parts += ["", "## By policy and predictor", "", *_means(rows)]
    if measured:
        parts += ["", "## Measured on the lab", "", _MEASURED, "", *_beside(found["lab"], measured)]
    parts += ["", "## Larger worlds", "", _LARGE, "", *_larger(found["large"])]
    parts += ["", "## Layers left out", "", *_dropped(found["drop"])]
    return "\n".join(parts) + "\n"


_HEAD = """# What ideas on the order of gradients are worth

Written by `python -m tests.accuracy.order_findings` from `ddpsim order-bench`: the kept order traces (`traces/orders`,
four ranks each), the first {steps} steps, on `lab-flat` with computation scaled so that all messages take 0.5, 1 and 2
times what backward does. Gains are over stock torch, which rebuilds once, or never where gradients are missing
(`find_unused_parameters`), net of conferring and rebuilding, with 90 % intervals. The oracle builds buckets for what
comes next and pays nothing. An idea is *worth it* where the lower end of its gain is {worth} of the step or more. The
recorded models are small: a cap of an eighth of their gradients stands for torch's 25 MiB.
"""
_MEASURED = """`python -m ddpexec netlab --ranks 4 --rate 1gbit -- python -m ddpexec order-run --trace T --topology
traces/order-runs/lab-plain.yaml --wire-over-backward W --rounds 2` replays the trace with timed layers, arms in turns,
four ranks on two cores on which other work ran meanwhile: medians stand here, and what a policy costs the host weighs
more than on idle cores, which is what the prediction takes. `never` is torch's buckets under our own class. The
measured oracle pays for its rebuilds, the predicted one does not."""
_LARGE = """Drawn traces (`ddpsim order-bench --generated ...`) on `p3dn.24xlarge` hosts, a rank a node, messages over
backward at 1."""


def _verdicts(rows: Sequence[Row]) -> Iterator[str]:
    for trace in _traces(rows):
        own = [row for row in rows if row["trace"] == trace]
        worth = [row for row in own if row["gain_low"] >= WORTH]
        bound = max(row["bound"] for row in own)
        where = ", ".join(f"{ratio:g}" for ratio in RATIOS if any(row["ratio"] == ratio for row in worth))
        if worth:
            best = max(worth, key=lambda row: row["gain"])
            what = f"worth it at {where}: up to {best['gain']:.1%}, by `{best['policy']}` with `{best['predictor']}`"
        elif bound < WORTH:
            what = f"no order can give {WORTH:.0%}: the oracle saves {bound:.1%} at most"
        else:
            best = max(own, key=lambda row: row["gain"])
            what = f"an oracle would save up to {bound:.1%}, the best found {_interval(best)}"
        yield f"- **{trace}**: {what}."


def _best(rows: Sequence[Row]) -> Iterator[str]:
    yield "| trace | wire / backward | torch ms | rebuilt once | oracle | best | policy | predictor | rebuilds |"
    yield "|---|--:|--:|--:|--:|--:|---|---|--:|"
    for trace in _traces(rows):
        for ratio in RATIOS:
            own = [row for row in rows if (row["trace"], row["ratio"]) == (trace, ratio)]
            best = max(own, key=lambda row: row["gain"])
            once = 1 - best["rebuilt_once_s"] / best["torch_s"]
            yield (
                f"| {trace} | {ratio:g} | {1e3 * best['torch_s']:.1f} | {once:+.1%} | {best['bound']:+.1%} | "
                f"{_interval(best)} | `{best['policy']}` | `{best['predictor']}` | {best['rebuilds']} |"
            )


def _means(rows: Sequence[Row]) -> Iterator[str]:
    yield "Means over traces and ratios; tau is of what was expected and what came, unused parameters counted."
    yield ""
    yield "| policy | predictor | gain | worst | tau | held back ms | rebuilds a hundred steps |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for policy in POLICIES:
        for predictor in PREDICTORS:
            own = [row for row in rows if (row["policy"], row["predictor"]) == (policy, predictor)]
            taus = [row["tau"] for row in own if row["tau"] is not None]
            yield (
                f"| `{policy}` | `{predictor}` | {fmean(row['gain'] for row in own):+.1%} | "
                f"{min(row['gain'] for row in own):+.1%} | {fmean(taus):.2f} | "
                f"{1e3 * fmean(row['held_back_s'] for row in own):.1f} | "
                f"{100 / STEPS * fmean(row['rebuilds'] for row in own):.0f} |"
            )


def _beside(rows: Sequence[Row], measured: Sequence[Row]) -> Iterator[str]:
    yield "| trace | wire / backward | arm | torch ms | predicted gain | measured gain | steps |"
    yield "|---|--:|---|--:|--:|--:|--:|"
    for run in measured:
        if run["arm"] == "torch":
            torch_s = run["step_s"]
            continue
        own = [row for row in rows if (row["trace"], row["ratio"]) == (run["trace"], run["ratio"])]
        policy, _, predictor = run["arm"].partition(", ")
        known = [row["gain"] for row in own if (row["policy"], row["predictor"]) == (policy, predictor)]
        predicted = {"oracle": own[0]["bound"], "never": 0.0}.get(policy) if not known else known[0]
        yield (
            f"| {run['trace']} | {run['ratio']:g} | `{run['arm']}` | {1e3 * torch_s:.1f} | {predicted:+.1%} | "
            f"{_interval(run)} | {run['steps']} |"
        )


def _larger(rows: Sequence[Row]) -> Iterator[str]:
    yield "| statistics | policy | predictor | torch ms | oracle | gain | rebuilds |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| `{row['trace']}` | `{row['policy']}` | `{row['predictor']}` | {1e3 * row['torch_s']:.1f} | "
            f"{row['bound']:+.1%} | {_interval(row)} | {row['rebuilds']} |"
        )


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


def _traces(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["trace"] for row in rows))


def _interval(row: Row) -> str:
    return f"{row['gain']:+.1%} ({100 * row['gain_low']:+.1f} to {100 * row['gain_high']:+.1f})"


def measured_runs() -> list[dict[str, Any]]:
    """Return the rows of the kept runs, with their ratio."""
    rows = [row for path in sorted(RUNS.glob("*.json")) for row in json.loads(path.read_text())["rows"]]
    return [{**row, "ratio": float(row["machine"].rpartition(" at ")[2])} for row in rows]


def predicted_lab() -> list[dict[str, Any]]:
    """Return what is predicted of the runs."""
    with ProcessPoolExecutor(2) as pool:
        return [row for found in pool.map(of_lab, [(name, ratio) for name in RUN for ratio in RATIOS]) for row in found]


def main(arguments: Sequence[str]) -> None:
    """Compute the bench anew where that is asked, and write the page."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if "bench" in arguments:
        kept |= collected()
    if {"bench", "lab"} & set(arguments):
        kept["lab"] = predicted_lab()
        write_whole(KEPT, json_text(kept).encode())
    write_whole(TARGET, page(kept, measured_runs()).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
