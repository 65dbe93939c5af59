"""Dumps of torch's flight recorder: which collective each rank had reached, who came last, who never came.

torch writes one pickle a rank (`TORCH_FR_BUFFER_SIZE`, `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`). A pickle can run any code
where it is read; these hold numbers, texts and containers only, and are read by an unpickler that knows nothing else.
Stamps are of each host's wall clock, taken when a collective is enqueued: before ranks wait in it, so that they differ
by rank, and as good as the hosts' clocks agree. Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, format 2.x.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, NoReturn

from ddpsim.common.errors import TraceError
from ddpsim.common.files import read_bytes
from ddpsim.common.strict import parse_whole_number
from ddpsim.explaining.late import SURE, standard_error
from ddpsim.topology.bounds import MOST_RANKS

_REMEDY = "give the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE, one file a rank"
_LARGEST = 1 << 28
"""Bytes of a dump at most: a buffer of 20,000 entries with their stacks is a few tens of MB."""
_MOST = 1 << 63
"""No stamp in nanoseconds and no number of a collective is as large."""
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxtuple, _repr.maxstring, _repr.maxother = 3, 16, 16, 200, 60
_FEWEST = 3
"""Collectives that a verdict on the last rank takes at least."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank that has not come to a collective that others wait in."""

    rank: int
    last: int
    others: int
    waiting_in: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A rank that calls another collective, or one of another size, than most where they have the same number."""

    rank: int
    number: int
    called: str
    others: str


@dataclass(frozen=True, slots=True)
class RecorderDumps:
    """The dumps of a job's ranks, compared."""

    ranks: tuple[int, ...]
    """Ranks of which there is a dump."""
    collectives: int
    """How many have the same number on at least two ranks."""
    last: tuple[int, float] | None
    """The rank that enqueues collectives after the others, and by how many seconds; None where there is none."""
    behind: tuple[MissingRank, ...]
    """Ranks that others waited for when the dumps were taken."""
    mismatches: tuple[Mismatch, ...]
    """Ranks whose call differs from that of most."""
    notes: tuple[str, ...] = ()
    """Files that could not be read."""

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "ranks": list(self.ranks),
            "collectives": self.collectives,
            "last": None if self.last is None else {"rank": self.last[0], "seconds": self.last[1]},
            "behind": [asdict(each) for each in self.behind],
            "mismatches": [asdict(each) for each in self.mismatches],
        }

    def lines(self) -> list[str]:
        """Return it in words."""
        lines = [
            f"rank {b.rank} stopped after collective {b.last}, others wait in {b.others} ({b.waiting_in})"
            for b in self.behind[:_SHOWN]
        ]
        lines += [
            f"rank {m.rank} calls {m.called} as collective {m.number}, others {m.others}"
            for m in self.mismatches[:_SHOWN]
        ]
        if self.last is not None:
            rank, seconds = self.last
            lines.append(f"rank {rank} enqueues collectives {seconds * 1e3:.3g} ms after the others, by wall clocks")
        return lines or [f"nothing out of order in {self.collectives} collectives of {len(self.ranks)} ranks"]


def read_recorder(folder: str | Path) -> RecorderDumps:
    """Read the dumps in `folder` and compare them.

    Raises:
        TraceError: no such folder, or no dump in it that can be read.
    """
    place = Path(folder)
    if not os.path.isdir(place):
        raise TraceError("no such folder", place=str(folder), remedy=_REMEDY)
    dumps: dict[int, dict[int, dict[str, Any]]] = {}
    refused: list[TraceError] = []
    for file in sorted(path for path in place.iterdir() if path.is_file()):
        try:
            dumps[_rank_of(file)] = _entries(file)
        except TraceError as error:
            refused.append(error)
    if not dumps:
        raise refused[0] if refused else TraceError("holds no dump", place=str(folder), remedy=_REMEDY)
    ranks = tuple(sorted(dumps))
    numbers = sorted({number for entries in dumps.values() for number in entries})
    common = [number for number in numbers if sum(number in entries for entries in dumps.values()) > 1]
    last, behind, mismatches = _find_last(dumps, common), _find_behind(dumps), _mismatches(dumps, common)
    notes = tuple(f"left out: {error}" for error in refused)
    return RecorderDumps(ranks, len(common), last, behind, mismatches, notes)


def _rank_of(file: Path) -> int:
    numbers = re.findall(r"[0-9]+", file.name)
    rank = parse_whole_number(numbers[-1]) if numbers else None
    if rank is None or rank >= MOST_RANKS:
        what = f"its name has no rank below {MOST_RANKS:,}, the most of a job"
        raise TraceError(what, place=str(file), remedy=_REMEDY)
    return rank


def _entries(file: Path) -> dict[int, dict[str, Any]]:
    """Return the collectives of a dump's largest group by their number."""
    dump = read_plain(read_bytes(file, TraceError, _REMEDY, most=_LARGEST), str(file))
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise TraceError("not a dump of the flight recorder: no entries", place=str(file), remedy=_REMEDY)
    usable = [e for e in entries if isinstance(e, dict) and not e.get("is_p2p")]
    usable = [e for e in usable if all(_is_number(e.get(key)) for key in ("collective_seq_id", "time_created_ns"))]
    if not usable:
        raise TraceError("holds no collective", place=str(file), remedy=_REMEDY)
    groups = [_format_value(entry.get("process_group")) for entry in usable]
    usual = Counter(groups).most_common(1)[0][0]
    return {e["collective_seq_id"]: e for e, group in zip(usable, groups, strict=True) if group == usual}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _find_last(dumps: Mapping[int, Mapping[int, Mapping[str, Any]]], common: Sequence[int]) -> tuple[int, float] | None:
    """Return the rank with the largest median lag behind the others' median stamp, and that lag.

    None where it is within the lag's own noise, or what wall clocks differ by anyway.
    """
    everywhere = [number for number in common if all(number in entries for entries in dumps.values())]
    if len(dumps) < 2 or len(everywhere) < _FEWEST:
        return None
    lags_of_ranks = []
    for rank in dumps:
        lags = []
        for number in everywhere:
            stamps = {r: entries[number]["time_created_ns"] / 1e9 for r, entries in dumps.items()}
            lags.append(stamps[rank] - median(s for r, s in stamps.items() if r != rank))
        lags_of_ranks.append((median(lags), standard_error(lags), rank))
    lag, error, rank = max(lags_of_ranks)
    return (rank, lag) if lag > SURE * error and lag > _PRECISE_S else None


_PRECISE_S = 1e-3
"""Seconds to which wall clocks of nodes agree at best under NTP."""


def _find_behind(dumps: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> tuple[MissingRank, ...]:
    """Return the ranks whose last collective lies before one that others have enqueued and not completed.

    gloo's entries stay `scheduled` to the end: only `retired` marks those that are over.
    """
    waiting = {
        number: entry
        for entries in dumps.values()
        for number, entry in entries.items()
        if entry.get("state") != "completed" and not entry.get("retired")
    }
    missing = []
    for rank, entries in sorted(dumps.items()):
        last = max(entries)
        later = sorted(number for number in waiting if number > last)
        if later:
            missing.append(MissingRank(rank, last, later[0], _entry_name(waiting[later[0]])))
    return tuple(missing)


def _mismatches(dumps: Mapping[int, Mapping[int, Mapping[str, Any]]], common: Sequence[int]) -> tuple[Mismatch, ...]:
    mismatches = []
    for number in common:
        names = {rank: _entry_name(entries[number]) for rank, entries in dumps.items() if number in entries}
        usual = Counter(names.values()).most_common(1)[0][0]
        mismatches += [Mismatch(rank, number, what, usual) for rank, what in sorted(names.items()) if what != usual]
    return tuple(mismatches)


def _entry_name(entry: Mapping[str, Any]) -> str:
    name = entry.get("profiling_name", "collective")
    plain = name if isinstance(name, str) else _format_value(name)
    return f"{plain.rpartition(':')[2]} of {_format_value(entry.get('input_sizes'))}"


def _format_value(value: object) -> str:
    """Return a value as Python writes it, as far as names and lists of shapes go: containers may hold one another."""
    return _repr.repr(value)


_MOST_IN_TUPLE = 10_000
"""Values of a tuple and the tuples in it at most: the recorder's are pairs of texts."""


class _Plain(pickle._Unpickler):
    """An unpickler of numbers, texts and containers alone: no class and no function, so that a file can run no code.

    Python's own implementation, not C's, for one more attack: a tuple that holds a tuple twice, which holds one twice,
    and so on, is short in the file and takes days to hash as a key of a dict. Values within tuples are counted before
    they can be hashed.
    """

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        # Each tuple by its address with its values in all; kept alive, so that no other gets its address.
        self._counted: dict[int, tuple[object, int]] = {}

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain container")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a persistent object is no plain container")

    def make_tuple(self, opcode: int) -> None:
        """Make a tuple as Python does, and refuse it where it holds more than `_MOST_IN_TUPLE` values in all."""
        make: Any = pickle._Unpickler.dispatch[opcode]
        make(self)
        new = self.stack[-1]  # type: ignore[attr-defined]
        count = 1 + sum(self._counted[id(each)][1] if isinstance(each, tuple) else 1 for each in new)
        if count > _MOST_IN_TUPLE:
            raise pickle.UnpicklingError(f"a tuple of more than {_MOST_IN_TUPLE:,} values")
        self._counted[id(new)] = (new, count)


for _code in (pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _Plain.dispatch[_code[0]] = partial(_Plain.make_tuple, opcode=_code[0])


def read_plain(raw: bytes, place: str) -> object:
    """Return what a pickle of plain containers holds.

    Raises:
        TraceError: anything else in it, or no whole pickle.
    """
    try:
        return _Plain(io.BytesIO(raw)).load()
    except Exception as cause:  # a damaged pickle raises whatever its opcodes come to
        what = f"not a pickle of plain containers: {cause}"
        raise TraceError(what, place=place, remedy="give what the flight recorder wrote, whole") from cause
