"""A cache of parsed shipped files, where Python has its compiled modules.

To check a file against its schema takes pydantic and a YAML parser, whose import is a fifth of a prediction. A shipped
file is therefore handled as a module is: parsed once, and from then on unpickled from `__pycache__` next to the file.
`PYTHONPYCACHEPREFIX` and `PYTHONDONTWRITEBYTECODE` hold for it too, and a folder that cannot be written has no cache.
The pickle is replaced where the file, or a module of `ROOMS`, has another time or size. A user's file is always parsed.
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

Parsed = TypeVar("Parsed")

ROOMS = ("bucketing", "common", "common/documents", "common/options", "topology", "topology/gpus", "workload")
"""Folders of the package whose code determines what a shipped file is parsed to."""

_PACKAGE = Path(__file__).parents[1]


def read_compiled(path: Path, read: Callable[[Path], Parsed], *, beside: tuple[Path, ...] = ()) -> Parsed:
    """Return `read(path)` of a shipped file, from the cache where that is up to date.

    Args:
        read: parses the file; the classes of what it returns are in `ROOMS`.
        beside: folders whose files `read` may read as well.
    """
    try:
        cached = Path(cache_from_source(f"{path}.py")).with_suffix(".pickle")
    except NotImplementedError:  # a Python that compiles nothing
        return read(path)
    stamp = _stamp(path, beside)
    with suppress(Exception):  # none, or one that was damaged, or made by other libraries
        data = cached.read_bytes()
        if data.startswith(stamp):
            stored: Parsed = pickle.loads(memoryview(data)[len(stamp) :])
            return stored
    parsed = read(path)
    if not sys.dont_write_bytecode:
        with suppress(InputError):
            write_whole(cached, stamp + pickle.dumps(parsed, pickle.HIGHEST_PROTOCOL))
    return parsed


def _stamp(path: Path, beside: tuple[Path, ...]) -> bytes:
    """Return a digest that changes with the file, with those that it may read, and with the modules that parse it."""
    digest = hashlib.sha256(stamp_of_modules())
    status = path.stat()
    read = (path.name, status.st_mtime_ns, status.st_size)
    digest.update(repr([read, *(sorted(_list_files(folder)) for folder in beside)]).encode())
    return digest.digest()


@cache
def stamp_of_modules() -> bytes:
    """Return a digest that changes with any module of `ROOMS`."""
    folders = tuple(map(_PACKAGE.joinpath, ROOMS))
    return hashlib.sha256(repr([sorted(_list_files(folder)) for folder in folders]).encode()).digest()


def _list_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, time of change and size of each file in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                status = entry.stat()
                yield entry.name, status.st_mtime_ns, status.st_size
