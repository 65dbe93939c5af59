"""How a step's batches are loaded: what one process of the user's `DataLoader` takes for one, measured apart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ddpexec.capturing.own_step import OwnStep, name_errors
from ddpsim.common.errors import InputError
from ddpsim.common.options.input_stage import InputStage

BATCHES = 10
"""Batches that are loaded to be timed, after one that is not."""


def find_loading(own: OwnStep) -> InputStage | None:
    """Return how the batches of a step with a data loader, its attribute `loader`, are loaded; None where it has none.

    One process loads them here, one after the other, whatever the loader's own number is.

    Raises:
        InputError: a `loader` that is none of torch's, that loads nothing, or that raises.
    """
    loader = getattr(own.step, "loader", None)
    if loader is None:
        return None
    if not isinstance(loader, DataLoader):
        what, remedy = f"`loader` is a {type(loader).__name__}", "let it be a torch.utils.data.DataLoader"
        raise InputError(what, place=f"--step {own.path}", remedy=remedy)
    times, sizes = [], []
    with name_errors(own.path):
        for seconds, batch in _time_batches(itertools.islice(_batches(loader), BATCHES + 1)):
            times.append(seconds)
            sizes.append(batch_bytes(batch))
    if not times:
        raise InputError("`loader` has no batch", place=f"--step {own.path}", remedy="give its dataset samples")
    return InputStage(
        load_s=median(times[1:] or times),
        workers=loader.num_workers,
        copy_bytes=max(sizes),
        pinned=loader.pin_memory,
    )


def batch_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch, which is a tensor or holds some in dicts, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, dict):
        batch = list(batch.values())
    return sum(map(batch_bytes, batch)) if isinstance(batch, list | tuple) else 0


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches as one of the loader's processes makes them."""
    collate = loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        samples = iter(loader.dataset)
        while batch := list(itertools.islice(samples, loader.batch_size or 1)):
            yield collate(batch if loader.batch_size else batch[0])
    elif loader.batch_sampler is None:
        for index in loader.sampler:
            yield collate(loader.dataset[index])
    else:
        for indices in loader.batch_sampler:
            yield collate([loader.dataset[index] for index in indices])


def _time_batches(batches: Iterable[Any]) -> Iterator[tuple[float, Any]]:
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield time.perf_counter() - begin, batch
