"""Figure 11: how the loss falls where gradients are synchronised every 1, 2, 4 or 8 iterations, really trained.

The training is apart (`make convergence`); this reads what it kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ddpsim.paper.claim import TOLERANCE, Claim, all_of
from ddpsim.paper.figure import Answers, Figure, Point, Reproduction
from ddpsim.paper.training import Curve, TrainingFile, curves, load_training
from ddpsim.plots.panels import Line, Panel

SMALL, LARGE = 8, 256
"""Images a rank in the paper's two settings."""


def _points() -> list[Point]:
    return []


def _reproduce(_: Answers) -> Reproduction:
    file = load_training()
    small, large = (curves(file, size) for size in (SMALL, LARGE))
    panels = [_panel(file, size, found) for size, found in ((SMALL, small), (LARGE, large))]
    return Reproduction(panels, [claim(small, large)], [_note(file)])


def claim(small: Mapping[int, Curve], large: Mapping[int, Curve]) -> Claim:
    """Return claim 13 with its verdict: no harm with small batches, a higher final loss with large ones.

    A loss is higher where it is so by more than `TOLERANCE` of itself and by two standard errors: the paper has no
    number for negligible. The rule was made on other seeds than those that are kept.
    """
    unharmed = not any(_higher(small[1], curve) for curve in small.values())
    suffers = _higher(large[1], large[max(large)])
    rises = "; ".join(f"batch {size}: {_rise(found)}" for size, found in ((SMALL, small), (LARGE, large)))
    return Claim(
        13,
        "fig11",
        "no_sync of 2, 4, 8: negligible harm with batches of 8, a higher final loss with 256",
        "-",
        f"final loss with no_sync 1 and {max(small)}: {rises}",
        all_of((unharmed, suffers)),
        _why(unharmed, suffers),
    )


def _rise(found: Mapping[int, Curve]) -> str:
    plain, longest = found[1], found[max(found)]
    return f"{plain.final:.4f}, {longest.final:.4f} ({longest.final / plain.final - 1:+.0%})"


def _higher(plain: Curve, other: Curve) -> bool:
    more = other.final - plain.final
    return more > TOLERANCE * plain.final and more > 2 * math.hypot(plain.error, other.error)


def _why(unharmed: bool, suffers: bool) -> str:
    parts = [
        "Gradients add up, so that a step of n times the batch takes n times the rate"
        if unharmed
        else "A step n times as rare and as long slows small batches here",
        "of a large batch that is too long a step, and few are left"
        if suffers
        else "with large batches these images are learned whatever is done",
    ]
    return f"{'; '.join(parts)}."


def _panel(file: TrainingFile, size: int, found: Mapping[int, Curve]) -> Panel:
    rate = next(run.learning_rate for run in file.runs if run.batch_size == size)
    lines = [
        Line(f"no_sync {every}", [file.window * (place + 0.5) for place in range(len(curve.loss))], curve.loss)
        for every, curve in found.items()
    ]
    return Panel(f"batch {size}, learning rate {rate:g}", "iteration", "training loss", lines=lines)


def _note(file: TrainingFile) -> str:
    seeds = len({run.seed for run in file.runs})
    return (
        f"Really trained by ddpexec on torch {file.torch}: {file.model} on {file.images}, {file.optimizer}, "
        f"{file.ranks} ranks over gloo, {seeds} seeds, whose mean is drawn. `make convergence` trains again."
    )


FIGURE = Figure("fig11", "Convergence with gradients synchronised every n iterations", _points, _reproduce)
