"""Figure 11: verdicts of trainings made up, broken files, and the kept one against what its numbers say."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ddpsim.common.errors import InputError
from studies.convergence.convergence import SEEDS
from studies.paper import fig11
from studies.paper.training import KEPT, load_training

HEAD = {
    "schema": "ddpsim.training/1", "images": "made up", "model": "none", "optimizer": "SGD", "ranks": 2, "window": 10,
    "torch": "2.13",
}  # fmt: skip


def run(size: int, every: int, seed: int, final: float, scatter: float = 0.0) -> dict[str, Any]:
    loss = [2.3, 1.0, *[final] * 16, final - scatter, final + scatter]
    held_out = {"held_out_loss": 0.1, "held_out_accuracy": 0.9}
    return {"batch_size": size, "learning_rate": 0.02, "every": every, "seed": seed, "loss": loss, **held_out}


def verdict_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: tuple[float, float],
    large: tuple[float, float],
    scatter: float = 0.0,
    apart: float = 0.0,
) -> str:
    """Return the claim where final losses with `no_sync` 1 and 8 are `small` and `large`.

    Args:
        scatter: by which the loss of one run goes up and down.
        apart: by which the seeds of a longer interval differ in what they lose.
    """
    runs = [
        run(size, every, seed, final + (every > 1) * apart * (seed - 1), scatter)
        for size, finals in ((8, small), (256, large))
        for every, final in zip((1, 8), finals, strict=True)
        for seed in (0, 1, 2)
    ]
    file = tmp_path / "made.json"
    file.write_text(json.dumps({**HEAD, "runs": runs}))
    monkeypatch.setattr(fig11, "load_training", lambda: load_training(str(file)))
    [claim] = fig11.FIGURE.reproduce({}).claims
    return claim.verdict


def test_it_holds_where_large_batches_alone_end_higher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = partial(verdict_of, tmp_path, monkeypatch)
    assert told((0.1, 0.105), (0.1, 0.2)) == "holds"
    assert told((0.1, 0.2), (0.1, 0.2)) == "fails"
    assert told((0.1, 0.105), (0.1, 0.11)) == "fails"


def test_a_rise_within_what_the_loss_goes_up_and_down_by_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = partial(verdict_of, tmp_path, monkeypatch)
    assert told((0.1, 0.13), (0.1, 0.2), scatter=0.04) == "holds"
    assert told((0.1, 0.13), (0.1, 0.2), scatter=0.01) == "fails"
    assert told((0.1, 0.105), (0.1, 0.13), scatter=0.04) == "fails"


def test_it_is_undecided_within_the_error_of_a_rise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = partial(verdict_of, tmp_path, monkeypatch)
    assert told((0.1, 0.105), (0.1, 0.12), apart=0.001) == "holds"
    assert told((0.1, 0.105), (0.1, 0.12), apart=0.01) == "undecided"
    assert told((0.1, 0.105), (0.1, 0.13), apart=0.03) == "undecided"


def test_the_kept_verdict_is_that_of_its_numbers() -> None:
    """Once more with numpy, from the file as JSON."""
    document = json.loads(KEPT.read_text())

    def tails(size: int, every: int) -> NDArray[np.float64]:
        runs = sorted(document["runs"], key=lambda each: each["seed"])
        chosen = [each["loss"] for each in runs if (each["batch_size"], each["every"]) == (size, every)]
        losses = np.array(chosen)
        return losses[:, -round(losses.shape[1] / 10) :]

    def higher(size: int, every: int) -> float:
        one, other = tails(size, 1), tails(size, every)
        more = (other - one).mean(axis=1)
        beyond = more.mean() - max(0.15 * one.mean(), one.std(ddof=1))
        return 0 if abs(beyond) < more.std(ddof=1) / np.sqrt(len(more)) else float(np.sign(beyond))

    [claim] = fig11.FIGURE.reproduce({}).claims
    harm, suffers = [higher(8, every) for every in (2, 4, 8)], higher(256, 8)
    fails = 1 in harm or suffers == -1
    assert claim.verdict == ("fails" if fails else "undecided" if 0 in (*harm, suffers) else "holds")


def test_the_kept_file_has_every_setting_and_fresh_seeds_of_each() -> None:
    file = load_training()
    settings: dict[tuple[int, float, int], set[int]] = {}
    for each in file.runs:
        settings.setdefault((each.batch_size, each.learning_rate, each.every), set()).add(each.seed)
    assert set(settings) == {(*setting, every) for setting in ((8, 0.02), (256, 0.06)) for every in (1, 2, 4, 8)}
    assert {frozenset(seeds) for seeds in settings.values()} == {frozenset(SEEDS)}
    assert not {*SEEDS} & {*range(7)}, "these had been seen when the rule was made that the claim is judged by"
    assert all(each.held_out_accuracy > 0.9 for each in file.runs)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda document: document["runs"][0].update(loss=[]), "loss"),
        (lambda document: document.update(schema="ddpsim.workload/1"), "schema"),
        (lambda document: document["runs"][0].update(every=0), "every"),
        (lambda document: document["runs"][1]["loss"].pop(), "differ in length"),
        (lambda document: document["runs"].pop(), "different seeds"),
    ],
)
def test_a_broken_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object], named: str
) -> None:
    document = {
        **HEAD,
        "runs": [run(size, every, seed, 0.1) for size in (8, 256) for every in (1, 8) for seed in (0, 1)],
    }
    change(document)
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(document))
    monkeypatch.setattr(fig11, "load_training", lambda: load_training(str(file)))
    with pytest.raises(InputError, match=named):
        fig11.FIGURE.reproduce({})
