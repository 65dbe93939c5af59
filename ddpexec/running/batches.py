"""Batches of a run with an input stage: made by torch's `DataLoader`, copied to the device as the stage says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ddpexec.running.settings import refuse_rate
from ddpexec.timing.waiting import sharpen_timers, wait_until
from ddpsim.common.options.input_stage import PREFETCH, InputStage


class Batches:
    """Loads one batch for each iteration of a rank.

    A batch is bytes of no meaning that take as long to load and to copy as the stage says; what is trained on stays the
    same. Loading waits for time to pass and takes no core, as timed layers do.

    Args:
        stage: how batches are loaded and copied.
        device: on a CPU nothing is copied.

    Attributes:
        here: the batch of this iteration, on the GPU or on its way there; None on a CPU and before the first.

    Raises:
        OptionError: a stage that names a rate.
    """

    def __init__(self, stage: InputStage, device: torch.device) -> None:
        refuse_rate(stage)
        self._stage, self._device = stage, device
        self._on_gpu = device.type == "cuda"
        wanted = self._on_gpu and stage.pipelined
        self._copying = torch.cuda.Stream(device) if wanted else None  # type: ignore[no-untyped-call]
        self._iterator: Iterator[Tensor] | None = None
        self._ahead: Tensor | None = None
        self.here: Tensor | None = None

    def take(self) -> None:
        """Have the next batch: on the device, or queued to be there before what the computing stream does next."""
        if self._iterator is None:
            self._iterator = iter(self._loader())
        if not self._on_gpu:
            next(self._iterator)
        elif self._copying is None:
            waits = not self._stage.queued
            self.here = next(self._iterator).to(self._device, non_blocking=not waits)
            if waits:
                torch.cuda.current_stream(self._device).synchronize()
        else:
            self._ahead = self._fetch(self._copying) if self._ahead is None else self._ahead
            torch.cuda.current_stream(self._device).wait_stream(self._copying)
            self._ahead.record_stream(torch.cuda.current_stream(self._device))
            self.here, self._ahead = self._ahead, self._fetch(self._copying)

    def close(self) -> None:
        """End the loading processes."""
        self._iterator = self._ahead = self.here = None

    def _fetch(self, stream: torch.cuda.Stream) -> Tensor:
        """Return the next batch, whose copy has been queued on a stream of its own."""
        assert self._iterator is not None
        batch = next(self._iterator)
        with torch.cuda.stream(stream):
            return batch.to(self._device, non_blocking=True)

    def _loader(self) -> DataLoader[Tensor]:
        stage, workers = self._stage, self._stage.loaders
        pinned = self._on_gpu and (stage.pinned or stage.queued or stage.pipelined)
        ahead = PREFETCH if workers else None
        source = _Timed(stage.load_s, stage.copy_bytes)
        return DataLoader(source, batch_size=None, num_workers=workers, prefetch_factor=ahead, pin_memory=pinned)


class _Timed(IterableDataset[Tensor]):
    """Endless batches; loading one takes `load_s` from its request on."""

    def __init__(self, load_s: float, size_bytes: int) -> None:
        super().__init__()
        self._load_s, self._size_bytes = load_s, size_bytes

    def __iter__(self) -> Iterator[Tensor]:
        sharpen_timers()
        batch = torch.zeros(self._size_bytes, dtype=torch.uint8)
        while True:
            asked_s = time.perf_counter()
            wait_until(asked_s + self._load_s)
            yield batch
