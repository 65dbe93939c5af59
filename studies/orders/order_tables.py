"""The tables of order-findings.md that come from the bench and from its runs on the lab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]
WORTH = 0.03
"""Share of a step from which an idea counts as worth it."""


def verdicts(rows: Sequence[Row], measured: Sequence[Row]) -> Iterator[str]:
    """Yield what pays, trace by trace, the one that pays most first."""
    ratios = sorted({row["ratio"] for row in rows})
    for trace in _traces_by_worth(rows):
        own = [row for row in rows if row["trace"] == trace]
        worth = [row for row in own if row["gain_low"] >= WORTH]
        bound = max(row["bound"] for row in own)
        where = ", ".join(f"{ratio:g}" for ratio in ratios if any(row["ratio"] == ratio for row in worth))
        if worth:
            best = max(worth, key=lambda row: row["gain"])
            what = f"worth it at {where}: up to {best['gain']:.1%}, by `{best['policy']}` with `{best['predictor']}`"
        elif bound < WORTH:
            what = f"no order can give {WORTH:.0%}: the oracle saves {bound:.1%} at most"
        else:
            best = max(own, key=lambda row: row["gain"])
            what = f"an oracle would save up to {bound:.1%}, the best found {_interval(best)}"
        yield f"- **{trace}**: {what}.{_run(trace, measured)}"


def _traces_by_worth(rows: Sequence[Row]) -> list[str]:
    """Return the traces by the most that is worth it, then by what an oracle would save."""

    def worth(trace: str) -> tuple[float, float]:
        own = [row for row in rows if row["trace"] == trace]
        gains = (row["gain"] for row in own if row["gain_low"] >= WORTH)
        return max(gains, default=0.0), max(row["bound"] for row in own)

    return sorted(_traces(rows), key=worth, reverse=True)


def _run(trace: str, measured: Sequence[Row]) -> str:
    """Return what was measured of a trace, the best arm that could be had at each ratio."""
    told = []
    for machine in dict.fromkeys(row["machine"] for row in measured if row["trace"] == trace):
        own = [r for r in measured if (r["trace"], r["machine"]) == (trace, machine)]
        best = max((r for r in own if r["arm"].startswith("drift")), key=lambda r: float(r["gain"]))
        told.append(f"{_interval(best)} on {machine} by `{best['arm']}`")
    return f" Measured: {', '.join(told)}." if told else ""


def best(rows: Sequence[Row]) -> Iterator[str]:
    """Yield for each trace and ratio what gains most, in the order of `verdicts`."""
    yield "| trace | wire / backward | torch ms | once | oracle | best | regret | policy, predictor | rebuilds |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|--:|"
    for trace in _traces_by_worth(rows):
        for ratio in sorted({row["ratio"] for row in rows}):
            own = [row for row in rows if (row["trace"], row["ratio"]) == (trace, ratio)]
            best = max(own, key=lambda row: float(row["gain"]))
            once = 1 - best["rebuilt_once_s"] / best["torch_s"]
            yield (
                f"| {trace} | {ratio:g} | {1e3 * best['torch_s']:.1f} | {once:+.1%} | {best['bound']:+.1%} | "
                f"{_interval(best)} | {_interval(best, 'regret')} | `{best['policy']}`, `{best['predictor']}` | "
                f"{best['rebuilds']} |"
            )


def means(rows: Sequence[Row], steps: int) -> Iterator[str]:
    """Yield the means of each policy and predictor."""
    yield "Means over traces and ratios; tau is of what was expected and what came, unused parameters counted."
    yield ""
    yield "| policy | predictor | gain | worst | regret | tau | held back ms | rebuilds a hundred steps |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for policy, predictor in dict.fromkeys((row["policy"], row["predictor"]) for row in rows):
        own = [row for row in rows if (row["policy"], row["predictor"]) == (policy, predictor)]
        taus = [row["tau"] for row in own if row["tau"] is not None]
        yield (
            f"| `{policy}` | `{predictor}` | {fmean(row['gain'] for row in own):+.1%} | "
            f"{min(row['gain'] for row in own):+.1%} | {fmean(row['regret'] for row in own):+.1%} | "
            f"{fmean(taus):.2f} | {1e3 * fmean(row['held_back_s'] for row in own):.1f} | "
            f"{100 / steps * fmean(row['rebuilds'] for row in own):.0f} |"
        )


def beside(rows: Sequence[Row], measured: Sequence[Row]) -> Iterator[str]:
    """Yield the runs beside what was predicted of them."""
    yield "| trace | network, wire / backward | arm | torch ms | predicted gain | measured gain | steps |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for run in measured:
        if run["arm"] == "torch":
            torch_s = run["step_s"]
            continue
        own = [row for row in rows if (row["trace"], row["machine"]) == (run["trace"], run["machine"])]
        policy, _, predictor = run["arm"].partition(", ")
        known = [row["gain"] for row in own if (row["policy"], row["predictor"]) == (policy, predictor)]
        predicted = {"oracle": own[0]["bound"], "never": 0.0}.get(policy) if not known else known[0]
        yield (
            f"| {run['trace']} | {run['machine'].replace(' at ', ', ')} | `{run['arm']}` | {1e3 * torch_s:.1f} | "
            f"{predicted:+.1%} | {_interval(run)} | {run['steps']} |"
        )


def larger(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows of traces that are drawn."""
    yield "| statistics | policy | predictor | torch ms | oracle | gain | rebuilds |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| `{row['trace']}` | `{row['policy']}` | `{row['predictor']}` | {1e3 * row['torch_s']:.1f} | "
            f"{row['bound']:+.1%} | {_interval(row)} | {row['rebuilds']} |"
        )


def _traces(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["trace"] for row in rows))


def _interval(row: Row, name: str = "gain") -> str:
    return f"{row[name]:+.1%} ({100 * row[f'{name}_low']:+.1f} to {100 * row[f'{name}_high']:+.1f})"
