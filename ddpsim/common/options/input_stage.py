"""The input stage of a training step: a batch is loaded and copied to the device before forward can begin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from ddpsim.common.documents.fields import STATED, WRITTEN, Amount, Bounds, Index, NotInFile
from ddpsim.common.errors import InputError
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.suboptions import flag, parse_options, value
from ddpsim.common.units import parse_bandwidth, parse_size, parse_time

PREFETCH = 2
"""Batches that each loading process has ready or under way: `prefetch_factor` of torch's `DataLoader` (torch 2.13)."""

PAGEABLE_Bps = 4.0e9
"""Bytes per second of a copy from memory that is not pinned, which the driver stages through a buffer of its own.

Prior. NVIDIA's "How to Optimize Data Transfers in CUDA C/C++" has 2.3 and 5.4 GB/s on two hosts beside 5.8 and 6.2 GB/s
pinned: the host's own copy bounds it, not the slot. `rate=` takes what `bandwidthTest --memory=pageable` says.
"""

_MOST_WORKERS = 1024


def _workers(text: str, place: str) -> int:
    found = parse_whole_number(text)
    if found is None or found > _MOST_WORKERS:
        what, remedy = f"{text!r} is no number of loading processes", f"write e.g. workers=4, at most {_MOST_WORKERS}"
        raise InputError(what, place=place, remedy=remedy)
    return found


def _bytes(text: str, place: str) -> int:
    return round(parse_size(text, place))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStage:
    """How a rank loads the batch of each iteration and copies it to the device.

    Attributes:
        load_s: seconds in which one process loads one batch.
        workers: processes that load in the background, each its own batches; 0 loads on the training thread.
        copy_bytes: of the batch, copied from the host to the device; on a CPU nothing is copied.
        rate_Bps: at which a copy goes at most; None is the device's slot, and of memory not pinned `PAGEABLE_Bps`.
        pinned: whether batches lie in page-locked memory.
        queued: whether the host queues the copy on the computing stream and goes on (`non_blocking=True`, pinned);
            else it waits until the batch is there.
        pipelined: whether the next batch is copied on a stream of its own while this one is computed with, and loaded
            in the background; pinned.
        in_turn: whether the ranks' copies go one after the other, rather than all at once.

    Raises:
        InputError: two ways of copying at once.
    """

    load_s: Annotated[Amount, STATED] = value(parse_time, 0.0, "load")
    workers: Annotated[Index, WRITTEN] = value(_workers, 0)
    copy_bytes: Annotated[Index, WRITTEN] = value(_bytes, 0, "copy")
    rate_Bps: Annotated[float | None, Bounds(gt=0, le=1e18), WRITTEN] = value(parse_bandwidth, None, "rate")  # noqa: N815
    pinned: Annotated[bool, WRITTEN] = flag("pinned")
    queued: Annotated[bool, WRITTEN] = flag("queued")
    pipelined: Annotated[bool, WRITTEN] = flag("pipelined")
    in_turn: Annotated[bool, NotInFile] = False

    def __post_init__(self) -> None:
        if self.queued and self.pipelined:
            what = "`queued` and `pipelined` are two ways of copying"
            raise InputError(what, place="input_stage", remedy="keep one")

    @property
    def loaders(self) -> int:
        """Processes that load in the background: at least one where the stage is pipelined."""
        return max(self.workers, 1) if self.pipelined else self.workers

    @property
    def limit_Bps(self) -> float:  # noqa: N802
        """Bytes per second of one copy, whatever the links allow."""
        if self.rate_Bps is not None:
            return self.rate_Bps
        return float("inf") if self.pinned or self.queued or self.pipelined else PAGEABLE_Bps

    def scale(self, factor: float) -> InputStage:
        """Return the stage whose loading and host's part of a copy take `factor` of their time; 0 copies nothing."""
        rate_Bps = self.limit_Bps / factor if factor and math.isfinite(self.limit_Bps) else self.rate_Bps  # noqa: N806
        copied = self.copy_bytes if factor else 0
        return replace(self, load_s=factor * self.load_s, copy_bytes=copied, rate_Bps=rate_Bps)

    def merge_ranks(self, ranks: int) -> InputStage:
        """Return the stage where one process loads and copies the batches of `ranks`, each to a GPU of its own.

        From memory that is not pinned one copy goes after the other, for each holds the process up.
        """
        return replace(self, load_s=ranks * self.load_s, in_turn=math.isfinite(self.limit_Bps))


def input_stage(text: str) -> InputStage:
    """Return the input stage that `text` asks for.

    Raises:
        InputError: an option that there is not, a value that cannot be read, or a stage that does nothing.

    >>> input_stage("load=12ms,copy=38MB,pipelined").copy_bytes
    38000000
    """
    found = parse_options(InputStage, text, "input_stage")
    if found.load_s == 0 and found.copy_bytes == 0:
        remedy = "write e.g. load=12ms,workers=4,copy=38MB,pipelined, `recorded`, or leave it out"
        raise InputError(f"{text!r} neither loads nor copies anything", place="input_stage", remedy=remedy)
    return found


class Loader:
    """Says when batches are ready that loading processes make, a few ahead, as torch's `DataLoader` does.

    Processes that load one batch each in `load_s` are taken to be spread evenly over that time, so that together they
    have one ready every `load_s` over their number; each stops where it is `PREFETCH` ahead.

    Args:
        stage: how long one takes, and how many load at once.
    """

    __slots__ = ("_every_s", "_ready_s", "_stage", "_taken")

    def __init__(self, stage: InputStage) -> None:
        self._stage = stage
        self._every_s = stage.load_s / max(stage.loaders, 1)
        self._ready_s = 0.0
        self._taken: list[float] = []

    def take(self, now_s: float) -> float:
        """Return when the thread that asks for the next batch at `now_s` has it."""
        stage = self._stage
        if stage.loaders == 0:
            return now_s + stage.load_s
        # A process begins batch n when batch n - ahead is taken: then it is no more than `PREFETCH` ahead.
        number, ahead = len(self._taken), PREFETCH * stage.loaders
        free_s = self._taken[number - ahead] if number >= ahead else 0.0
        self._ready_s = max(self._ready_s + self._every_s, free_s + stage.load_s)
        self._taken.append(max(now_s, self._ready_s))
        return self._taken[-1]
