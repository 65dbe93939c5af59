"""What was read of a shipped file, kept where Python keeps compiled modules.

To check a file against its schema takes pydantic and a YAML parser, whose import is a fifth of a prediction. A shipped
file is therefore read as a module is: once, and from then on from what was made of it, under `__pycache__` beside the
file. `PYTHONPYCACHEPREFIX` and `PYTHONDONTWRITEBYTECODE` hold for it too, and a folder that cannot be written has none.
It is made anew where the file, or a module of the rooms that it is made of, is another. A user's own file is always
read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TypeVar

from ddpsim.common.errors import InputError
from ddpsim.common.files import write_whole

Made = TypeVar("Made")

ROOMS = ("bucketing", "common", "common/documents", "common/options", "topology", "topology/gpus", "workload")
"""Folders of the package whose code says what is made of a shipped file."""

_PACKAGE = Path(__file__).parents[1]


def read_compiled(path: Path, read: Callable[[Path], Made], *, beside: tuple[Path, ...] = ()) -> Made:
    """Return what `read` makes of the shipped file at `path`, or made of it before.

    Args:
        read: of what it returns, classes are of `ROOMS`.
        beside: folders whose files it may read, too.
    """
    try:
        kept = Path(cache_from_source(f"{path}.py")).with_suffix(".pickle")
    except NotImplementedError:  # a Python that compiles nothing
        return read(path)
    stamp = _stamp(path, beside)
    with suppress(Exception):  # none, or one that was damaged, or made by other libraries
        data = kept.read_bytes()
        if data.startswith(stamp):
            found: Made = pickle.loads(memoryview(data)[len(stamp) :])
            return found
    made = read(path)
    if not sys.dont_write_bytecode:
        with suppress(InputError):
            write_whole(kept, stamp + pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
    return made


def _stamp(path: Path, beside: tuple[Path, ...]) -> bytes:
    """Return what changes with the file, with what it may read, and with the modules that make something of it."""
    found = hashlib.sha256(stamp_of_modules())
    status = path.stat()
    read = (path.name, status.st_mtime_ns, status.st_size)
    found.update(repr([read, *(sorted(_list_files(folder)) for folder in beside)]).encode())
    return found.digest()


@cache
def stamp_of_modules() -> bytes:
    """Return what changes with any module of `ROOMS`."""
    folders = tuple(map(_PACKAGE.joinpath, ROOMS))
    return hashlib.sha256(repr([sorted(_list_files(folder)) for folder in folders]).encode()).digest()


def _list_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, time of change and size of each file in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                status = entry.stat()
                yield entry.name, status.st_mtime_ns, status.st_size
