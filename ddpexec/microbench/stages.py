"""A measurement in stages, each kept as soon as it is done: the same command goes on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddpexec.groups.process_groups import Communicator
from ddpsim.common.errors import InputError
from ddpsim.common.files import MOST_BYTES, json_text, open_regular, replace

Progress = Callable[[str], None]


def part_of(path: Path) -> Path:
    """Return where stages are kept until `path` can be written."""
    return path.with_name(f"{path.name}.part")


class Stages:
    """Carries out stages in turn; rank 0 keeps what they returned in `PATH.part`, and every rank begins with that.

    What another command has kept there, or what is no such document, is begun anew; a symbolic link or a pipe that
    stands there is not followed, and refused on every rank.

    Args:
        communicator: whose ranks measure together; every rank makes one.
        path: of the file that is to come about; None keeps nothing.
        asked: what is measured; only what was kept for the same counts.
        progress: told what is taken up.
    """

    def __init__(
        self,
        communicator: Communicator,
        path: Path | None = None,
        asked: Mapping[str, object] | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self._part = None if path is None else part_of(path)
        self._first, self._progress = communicator.rank == 0, progress
        self._asked = json.loads(json.dumps(asked or {}))
        what = "the exchange of what was measured before"
        self._done: dict[str, Any] = communicator.ask_rank_zero(self._load_kept, what)
        if self._done:
            progress(f"goes on after {len(self._done)} stages of {self._part}")

    def do(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what the stage `name` returned before, else what `work` returns now: JSON's values, of all ranks."""
        if name not in self._done:
            self._done[name] = work()
            if self._first and self._part is not None:
                document = {"asked": self._asked, "stages": self._done}
                replace(self._part, json_text(document))
        return self._done[name]

    def _load_kept(self) -> dict[str, Any]:
        if self._part is None or not os.path.lexists(self._part):
            return {}
        try:
            with os.fdopen(open_regular(self._part, os.O_RDONLY), "rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except OSError as error:
            what, remedy = f"cannot be read: {error.strerror}", "remove it, or name another file to write"
            raise InputError(what, place=str(self._part), remedy=remedy) from error
        try:
            document: Any = json.loads(raw) if len(raw) <= MOST_BYTES else None
            asked, stages = document["asked"], dict(document["stages"])
        except (ValueError, KeyError, TypeError, RecursionError):
            asked, stages = None, {}
        if asked != self._asked:
            self._progress(f"begins anew: {self._part} was kept for something else")
            return {}
        return stages
