"""Which files of a folder are traces, of which ranks, and each of them read, by as many processes as there are."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim.common.errors import InputError, TraceError
from ddpsim.common.files import MOST_TRACE_BYTES, BoundedFile
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.explaining.kineto import read_kineto_rank
from ddpsim.explaining.ranks import TracedRank
from ddpsim.explaining.recorded import read_recorded_rank
from ddpsim.topology.bounds import MOST_RANKS
from ddpsim.trace.json.schema import SCHEMA
from ddpsim.workload import Workload

_NAMES = re.compile(r".*\.json(\.gz)?", re.IGNORECASE)
_BESIDE = ("run.json", "workload.json", "plan.json", "calibration.json", "prediction.json", "allreduce.json")
_HEAD = 1 << 16
_REMEDY = "give a folder of rank traces: torch.profiler's export_chrome_trace or ddpexec's --out writes one file a rank"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The traces that were read.

    Attributes:
        ranks: ascending.
        world_size: of the run.
        missing: ranks of which there is no trace.
        notes: files left out and why, ranks that were guessed.
    """

    ranks: tuple[TracedRank, ...]
    world_size: int
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def trace_files(path: str | Path) -> list[Path]:
    """Return the files of rank traces at `path`: itself, or those in the folder, by the numbers in their names.

    Raises:
        TraceError: no such file, or no trace in the folder.
    """
    place = Path(path)
    if os.path.isfile(place):
        return [place]
    if not os.path.isdir(place):
        raise TraceError("no such file or folder", place=str(path), remedy=_REMEDY)
    found = [f for f in place.iterdir() if f.is_file() and _NAMES.fullmatch(f.name) and f.name not in _BESIDE]
    if not found:
        raise TraceError("holds no trace, no .json or .json.gz", place=str(path), remedy=_REMEDY)
    return sorted(found, key=lambda file: [int(t) if t.isdecimal() else t for t in re.split(r"([0-9]+)", file.name)])


def read_file(path: Path, shapes: Workload | None, lead: bool) -> TracedRank:
    """Return what one file says.

    Raises:
        TraceError: unreadable, or no trace of training.
    """
    if _is_ours(path):
        return read_recorded_rank(path, shapes, lead=lead)
    return read_kineto_rank(path, shapes, lead=lead)


def read_ranks(path: str | Path, shapes: Workload | None, crew: WorkerPool | None) -> Ranks:
    """Read every rank's trace; what cannot be read is left out and named, as long as one can.

    Raises:
        TraceError: no file can be read, or they are of runs of different sizes.
    """
    files = trace_files(path)
    read: list[TracedRank] = []
    refused: list[InputError] = []
    for file, rank in zip(files, _read_each(files, shapes, crew), strict=True):
        if isinstance(rank, InputError):
            refused.append(rank)
            continue
        named = rank if rank.rank is not None else replace(rank, rank=_number_in(file.name))
        if wrong := _check_ranks(named):
            refused.append(wrong)
        else:
            read.append(named)
    if not read:
        raise refused[0]
    return _join_ranks(read, [f"left out: {error}" for error in refused])


def _check_ranks(seen: TracedRank) -> TraceError | None:
    """Return what is wrong with a rank, or a number of ranks, that no job has."""
    ranks = MOST_RANKS if seen.world_size is None else seen.world_size
    if 0 < ranks <= MOST_RANKS and (seen.rank is None or 0 <= seen.rank < ranks):
        return None
    what = f"rank {seen.rank} of {'any' if seen.world_size is None else seen.world_size} ranks"
    remedy = f"number ranks from 0; a job has {MOST_RANKS:,} at most"
    return TraceError(what, place=seen.place, remedy=remedy)


def _read_each(
    files: Sequence[Path], shapes: Workload | None, crew: WorkerPool | None
) -> list[TracedRank | InputError]:
    if crew is None:
        return [_try_read(file, shapes, number == 0) for number, file in enumerate(files)]
    futures: list[Future[TracedRank | InputError]] = [
        crew.submit(_try_read, file, shapes, number == 0) for number, file in enumerate(files)
    ]
    return [future.result() for future in futures]


def _try_read(path: Path, shapes: Workload | None, lead: bool) -> TracedRank | InputError:
    """Return the rank, or the error, which as an exception of another process would lose its place."""
    collecting = gc.isenabled()
    # A trace is millions of small objects that stay: looking for cycles among them takes a seventh of the time.
    gc.disable()
    try:
        return read_file(path, shapes, lead)
    except InputError as error:
        return TraceError(error.message, place=error.place, remedy=error.remedy)
    finally:
        if collecting:
            gc.enable()


def _join_ranks(read: Sequence[TracedRank], notes: list[str]) -> Ranks:
    sizes = {rank.world_size: rank.place for rank in read if rank.world_size is not None}
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        what = f"of a run of {other} ranks, {first} is of one of {one}"
        raise TraceError(what, place=second, remedy="give each run a folder of its own")
    for each in read[1:]:
        ours, theirs = (f"{rank.backend or 'no process group'} on {rank.device}" for rank in (read[0], each))
        if ours != theirs and read[0].kind == each.kind:
            what = f"of a run with {theirs}, {read[0].place} is of one with {ours}"
            raise TraceError(what, place=each.place, remedy="give each run a folder of its own")
    # Each file may count from a time of its own.
    read = [each.shift((each.base_ns - read[0].base_ns) / 1e9) for each in read]
    ranks: dict[int, TracedRank] = {}
    for number, each in enumerate(read):
        rank = number if each.rank is None else each.rank
        if each.rank is None:
            notes.append(f"{each.place} does not say its rank, taken as {rank}")
        if rank in ranks:
            older, newer = sorted((ranks[rank], each), key=lambda one: one.iterations[0].index)
            notes.append(f"rank {rank} has two traces, {newer.place} is taken and {older.place} left out")
            each = newer
        ranks[rank] = each.numbered(rank)
    world_size = max([max(ranks) + 1, *(size for size in sizes if size is not None)])
    missing = tuple(rank for rank in range(world_size) if rank not in ranks)
    return Ranks(tuple(ranks[rank] for rank in sorted(ranks)), world_size, missing, tuple(notes))


def _number_in(name: str) -> int | None:
    """Return the rank that a file's name says: `rank3...`, `worker3...`; other numbers are of anything."""
    named = re.search(
        r"(?<![a-z])(?<!local[_-])(?<!node[_-])(?<!lora[_-])(?:rank|worker)[_-]?([0-9]+)", name, re.IGNORECASE
    )
    return None if named is None else parse_whole_number(named[1])


def _is_ours(path: Path) -> bool:
    with BoundedFile(path, str(path), TraceError, _REMEDY, MOST_TRACE_BYTES) as file:
        return f'"{SCHEMA}"'.encode() in file.read(_HEAD)
