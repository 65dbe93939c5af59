"""The page of what was judged: a row for each configuration, and a verdict for each reach of what is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from studies.tuning.judge import TRIALS, Judged, again, cost_of, gains_apart, judged

WITHIN, WITHIN_MOST, ALLOWED_PAST = 0.01, 0.02, 1
"""How far over the best plan's step the kept one's may be, and in how many configurations as far as the second."""
OVER_DEFAULT = 1.002
"""Step of the kept plan over torch's default where that is best."""
STEPS, LOST = 100, 0.03
"""Steps until it is decided, and the share of them that may be lost."""
HALVED_STEPS = 300
"""Steps within which a training whose network is halved is tuned anew."""
COST = 0.001
"""Share of a step that a tuner may take once it has decided."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A measure beside its reach; `holds` is None where nothing is measured."""

    measure: str
    reach: str
    found: str
    holds: bool | None


def page_of(configurations: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> str:
    """Return the page."""
    swept = [each for each in configurations if not each.get("halved")]
    rows = {each["name"]: judged(**_swept(known[each["name"]])) for each in swept if each["name"] in known}
    missing = [each["name"] for each in swept if each["name"] not in rows]
    lines = ["# The tuner's choice beside an exhaustive sweep", ""]
    lines.append(f"{len(rows)} of {len(swept)} configurations are measured.")
    if missing:
        lines += ["", f"Not yet measured: {', '.join(missing)}."]
    lines += ["", "| measure | reach | found | |", "|---|---|---|---|"]
    for each in verdicts(list(rows.values()), _halved(configurations, known), known.get("cost"), len(swept)):
        word = {None: "not measured", True: "holds", False: "missed"}[each.holds]
        lines.append(f"| {each.measure} | {each.reach} | {each.found} | {word} |")
    lines += [
        "",
        "Steps in ms. *Lost* is what the steps until it was decided took beyond as many of torch's default, torch's "
        f"own first two left out, a share of those; *blind* is a search of {TRIALS} trials that knows no model. The "
        "least of several means is too low by their noise: *apart* picks the best plan by half of the passes and times "
        "both by the other half.",
        "",
        "| name | kept | default | best | kept ms | of best | apart | of default "
        "| steps | lost | blind | steps | lost |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(name, row) for name, row in rows.items()]
    apart = [gap for name in rows for gap in gains_apart(known[name]["tuning"], known[name]["plans"])]
    near = [gap for name in rows for gap in gains_apart(known[name]["tuning"], again(known[name]["plans"]))]
    if near:
        usual = f"{median(apart):.1%} of a step off in the median of {len(apart)} plans"
        most = f"{np.percentile(near, 90):.1%} at the 90th percentile of the {len(near)} near the best"
        lines += ["", f"Gains over the default were predicted {usual}, {most}, which is the tuner's `CAPS_OFF`."]
    return "\n".join(lines) + "\n"


def verdicts(
    rows: Sequence[Judged], halved: Sequence[Mapping[str, Any]], cost: Mapping[str, Any] | None, planned: int
) -> list[Verdict]:
    """Return a verdict for each reach; one over all configurations holds only once all are measured."""
    whole = len(rows) == planned
    best = [row for row in rows if row.default_best]
    least = max((row.over_default for row in best), default=0.0)
    slowest, dearest = max((row.steps for row in rows), default=0), max((row.lost for row in rows), default=0.0)
    few = sum(row.lost <= LOST for row in rows)
    found = [
        _near("step of the kept plan over the best of the sweep", [row.over_best for row in rows], planned),
        _near("the same, best picked by half, timed by the other", [row.over_best_apart for row in rows], planned),
        Verdict(
            "step of the kept plan over the default where that is best",
            f"<= {OVER_DEFAULT}",
            f"at most {least:.3f} in {len(best)}",
            _held(least <= OVER_DEFAULT, whole and bool(best)),
        ),
        Verdict("steps until decided", f"<= {STEPS}", f"at most {slowest}", _held(slowest <= STEPS, whole)),
        Verdict(
            "lost in them",
            f"<= {LOST:.0%}",
            f"at most {dearest:.1%}; within it {few} of {len(rows)}",
            _held(dearest <= LOST, whole),
        ),
    ]
    found = found if rows else [replace(each, found="", holds=None) for each in found]
    found += [_halved_verdict(each) for each in halved] or [
        Verdict("after a network is halved, tuned anew", f"<= {HALVED_STEPS} steps", "", None)
    ]
    return [*found, _cost_verdict(cost)]


def _near(measure: str, ratios: Sequence[float], planned: int) -> Verdict:
    past, most = sum(each - 1 > WITHIN for each in ratios), max(ratios, default=1.0) - 1
    return Verdict(
        measure,
        f"within 1 % in {planned - ALLOWED_PAST} of {planned}, 2 % in all",
        f"within 1 % in {len(ratios) - past} of {len(ratios)}, at most {most:.1%}",
        _held(past <= ALLOWED_PAST and most <= WITHIN_MOST, len(ratios) == planned),
    )


def _held(holds: bool, whole: bool) -> bool | None:
    """What is missed is missed; what holds does once all is measured."""
    return holds if whole or not holds else None


def _halved_verdict(found: Mapping[str, Any]) -> Verdict:
    rounds, steps = found["tuning"]["rounds"], len(found["after"])
    again = len(rounds) > 1
    noticed = rounds[1]["first_step"] - found["halved_at"] if again else None
    text = f"noticed after {noticed} steps, decided after {steps}" if again else f"not noticed in {steps} steps"
    return Verdict(
        "after a network is halved, tuned anew", f"<= {HALVED_STEPS} steps", text, again and steps <= HALVED_STEPS
    )


def _cost_verdict(cost: Mapping[str, Any] | None) -> Verdict:
    measure, reach = "cost of a step after tuning, ABBA", f"<= {COST:.1%}"
    if cost is None:
        return Verdict(measure, reach, "", None)
    if not cost["rounds"]:
        return Verdict(measure, reach, "the tuner had not decided", False)
    share, error, call = cost_of(cost)
    text = f"{share:+.2%}, standard error {error:.2%}; the call alone {call:.4%}"
    return Verdict(measure, reach, text, share - 2 * error <= COST and call <= COST)


def _swept(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("tuning", "steps", "plans")}


def _halved(configurations: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [known[each["name"]] for each in configurations if each.get("halved") and each["name"] in known]


def _row(name: str, row: Judged) -> str:
    cells = [name, f"`{row.kept}`", *(f"{seconds * 1e3:.1f}" for seconds in (row.default_s, row.best_s, row.kept_s))]
    cells += [
        f"{row.over_best:.3f}",
        f"{row.over_best_apart:.3f}",
        f"{row.over_default:.3f}",
        str(row.steps),
        f"{row.lost:.1%}",
    ]
    cells += [f"{row.blind_over_best:.3f}", str(row.blind_steps), f"{row.blind_lost:.1%}"]
    return f"| {' | '.join(cells)} |"
