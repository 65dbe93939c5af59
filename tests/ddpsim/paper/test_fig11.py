"""Figure 11: verdicts of trainings made up, broken files, and the kept one against what its numbers say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ddpsim import shipped
from ddpsim.errors import InputError
from ddpsim.paper import fig11
from ddpsim.paper.training import load_training

HEAD = {
    "schema": "ddpsim.training/1", "images": "made up", "model": "none", "optimizer": "SGD", "ranks": 2, "window": 10,
    "torch": "2.13",
}  # fmt: skip


def run(size, every, seed, final):
    loss = [2.3, 1.0, *[final] * 18]
    held_out = {"held_out_loss": 0.1, "held_out_accuracy": 0.9}
    return {"batch_size": size, "learning_rate": 0.02, "every": every, "seed": seed, "loss": loss, **held_out}


def verdict_of(tmp_path, monkeypatch, small, large, noise=0.0):
    """Return the claim where final losses with `no_sync` 1 and 8 are `small` and `large`, as far apart as `noise`."""
    runs = [
        run(size, every, seed, final + noise * seed)
        for size, finals in ((8, small), (256, large))
        for every, final in zip((1, 8), finals, strict=True)
        for seed in (-1, 0, 1)
    ]
    for each in runs:
        each["seed"] += 1
    file = tmp_path / "made.json"
    file.write_text(json.dumps({**HEAD, "runs": runs}))
    monkeypatch.setattr(fig11, "load_training", lambda: load_training(str(file)))
    [claim] = fig11.FIGURE.reproduce({}).claims
    return claim.verdict


def test_it_holds_where_large_batches_alone_end_higher(tmp_path, monkeypatch):
    told = lambda *finals, **noise: verdict_of(tmp_path, monkeypatch, *finals, **noise)  # noqa: E731
    assert told((0.1, 0.105), (0.1, 0.2)) == "holds"
    assert told((0.1, 0.2), (0.1, 0.2)) == "fails"
    assert told((0.1, 0.105), (0.1, 0.11)) == "fails"
    # Seeds far apart, each of which ends as much higher: alike where they are compared one by one alone.
    assert told((0.1, 0.105), (0.1, 0.2), noise=0.09) == "undecided"
    assert told((0.1, 0.2), (0.1, 0.3), noise=0.09) == "undecided"


def test_the_kept_verdict_is_that_of_its_numbers():
    """Once more with numpy, from the file as JSON."""
    document = json.loads(shipped.path("training", "digits").read_text())

    def finals(size, every):
        runs = sorted(document["runs"], key=lambda each: each["seed"])
        chosen = [each["loss"] for each in runs if (each["batch_size"], each["every"]) == (size, every)]
        losses = np.array(chosen)
        return losses[:, -round(losses.shape[1] / 10) :].mean(axis=1)

    def higher(size, every):
        one, other = finals(size, 1), finals(size, every)
        more, count = other - one, len(one)
        apart = np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / count)
        by_seed = more.std(ddof=1) / np.sqrt(count)
        return [more.mean() > max(0.15 * one.mean(), 2 * error) for error in (apart, by_seed)]

    [claim] = fig11.FIGURE.reproduce({}).claims
    harm = np.array([higher(8, every) for every in (2, 4, 8)]).any(axis=0)
    suffers = np.array(higher(256, 8))
    each = ~harm & suffers
    assert claim.verdict == ("holds" if each.all() else "fails" if not each.any() else "undecided")


def test_the_kept_file_has_every_setting_and_as_many_seeds_of_each():
    file = load_training()
    settings = {}
    for each in file.runs:
        settings.setdefault((each.batch_size, each.learning_rate, each.every), set()).add(each.seed)
    assert set(settings) == {(*setting, every) for setting in ((8, 0.02), (256, 0.06)) for every in (1, 2, 4, 8)}
    assert len({frozenset(seeds) for seeds in settings.values()}) == 1
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
def test_a_broken_file_is_refused_by_name(tmp_path, monkeypatch, change, named):
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
