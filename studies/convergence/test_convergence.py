"""The training that figure 11 is drawn from: each rank's share of the images, and what is trained."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `exec`")

from studies.convergence.convergence import HELD_OUT, Images, batches, digits, resnet8  # noqa: E402


def test_ranks_share_each_epoch_without_an_image_twice() -> None:
    count, size, ranks = 48, 4, 2
    images = Images(torch.zeros(count, 1, 8, 8), torch.arange(count))
    seen = []
    for rank in range(ranks):
        taken = itertools.islice(batches(images, size, rank, ranks, seed=1), count // (size * ranks))
        seen.append([int(label) for batch in taken for label in batch.labels])
    assert [len(labels) for labels in seen] == [count // ranks] * ranks
    assert sorted(itertools.chain(*seen)) == list(range(count))


def test_batches_larger_than_what_is_left_go_on_with_the_next_epoch() -> None:
    images = Images(torch.zeros(10, 1, 8, 8), torch.arange(10))
    first, second = itertools.islice(batches(images, 8, 0, 1, seed=0), 2)
    assert len(first) == len(second) == 8
    assert sorted([*first.labels.tolist(), *second.labels.tolist()[:2]]) == list(range(10))


def test_the_model_is_eight_layers_of_ten_classes() -> None:
    model = resnet8()
    layers = [each for name, each in model.named_modules() if isinstance(each, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(layers) == 8 + 2  # and two around which the size halves
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
def test_the_images_are_scans_split_once_for_all() -> None:
    trained, held_out = digits()
    assert (len(trained), len(held_out)) == (1797 - HELD_OUT, HELD_OUT)
    assert trained.pixels.shape[1:] == (1, 8, 8)
    assert 0 <= float(trained.pixels.min()) < float(trained.pixels.max()) <= 1
    assert sorted(trained.labels.unique().tolist()) == list(range(10))
