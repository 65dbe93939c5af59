"""Files of a trace that goes on: the newest stamped steps in the folder itself, earlier ones in folders beside them."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddpsim.common.files import remove
from ddpsim.trace.json import discard_trace, write_rank, write_run
from ddpsim.trace.records import Iteration, Span, Trace

SUMMARY = "summary-rank{}.jsonl"


@dataclass(slots=True)
class BufferedIterations:
    """Stamped iterations that no file holds yet."""

    iterations: list[Iteration] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def clear(self) -> None:
        """Forget them."""
        self.iterations.clear()
        self.spans.clear()


class Rotation:
    """Writes one rank's files.

    `FOLDER/rank{N}.json.gz` are the newest steps, so that the folder is a trace at any time; before newer ones are
    written it goes to `FOLDER/steps-{first iteration}/`, which is a trace too. Every rank rotates at the same steps, so
    that each folder holds the same iterations of all. Rank 0 writes each `run.json`.

    Args:
        folder: of the trace.
        rank, world_size, backend: as in the files.
        files: how many are kept.

    Raises:
        InputError: an earlier trace that cannot be removed.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, backend: str, files: int) -> None:
        self._folder, self._rank, self._world, self._backend, self._files = folder, rank, world_size, backend, files
        self._newest: int | None = None
        for earlier in self._list_earlier():
            self._remove(earlier)
        discard_trace(folder, rank, world_size)
        remove(folder / SUMMARY.format(rank))

    def write(self, recorded: BufferedIterations, provenance: Mapping[str, object]) -> None:
        """Write what is recorded as the newest file, and clear it.

        Raises:
            InputError: the file cannot be written, or the one before it not be moved.
        """
        if not recorded.iterations:
            return
        if self._newest is not None:
            self._rotate(self._newest)
        self._newest = recorded.iterations[0].index
        trace = Trace(self._world, self._backend, recorded.iterations, recorded.spans, provenance)
        write_rank(trace, self._rank, self._folder)
        if self._rank == 0:
            write_run(trace, self._folder)
        recorded.clear()

    def _rotate(self, first: int) -> None:
        target = self._folder / f"steps-{first:08d}"
        target.mkdir(parents=True, exist_ok=True)
        self._name_own_file(self._folder).rename(self._name_own_file(target))
        if self._rank == 0:
            shutil.copyfile(self._folder / "run.json", target / "run.json")
        kept = self._files - 1
        earlier = self._list_earlier()
        for old in earlier[: max(0, len(earlier) - kept)]:
            self._remove(old)

    def _list_earlier(self) -> list[Path]:
        """Return the folders of earlier files of this rank, oldest first."""
        if not self._folder.is_dir():
            return []
        found = [each for each in self._folder.iterdir() if re.fullmatch(r"steps-\d{8,}", each.name)]
        return sorted(
            (each for each in found if self._name_own_file(each).exists()), key=lambda each: int(each.name[6:])
        )

    def _remove(self, earlier: Path) -> None:
        remove(self._name_own_file(earlier))
        if self._rank == 0:
            remove(earlier / "run.json")
        with contextlib.suppress(OSError):  # others' files are still there
            earlier.rmdir()

    def _name_own_file(self, folder: Path) -> Path:
        return folder / f"rank{self._rank}.json.gz"
