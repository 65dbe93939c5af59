"""Names of shipped files to their paths, in an installed wheel and in a checkout."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from ddpsim.common.errors import UnknownNameError

_PACKAGE = Path(__file__).parents[1]
FOLDERS = {
    "topology": (_PACKAGE / "_shipped" / "topologies", _PACKAGE.parent / "topologies"),
    "workload": (_PACKAGE / "_shipped" / "workloads", _PACKAGE.parent / "traces" / "workloads"),
    "gpu": (_PACKAGE / "_shipped" / "gpus", _PACKAGE.parent / "gpus"),
    "order trace": (_PACKAGE / "_shipped" / "orders", _PACKAGE.parent / "traces" / "orders"),
}
_SUFFIXES = {
    "topology": (".yaml",),
    "workload": (".json", ".json.gz"),
    "gpu": (".yaml",),
    "order trace": (".json.gz",),
}
_ENDINGS = {"topology": (".yaml", ".yml"), "workload": (".json", ".gz")}
"""Of files that people give as one, where that is more than the shipped ones have."""
_COMMANDS = {"topology": "topo", "workload": "workload"}
_FILE_ENDING = re.compile(r".*\.[a-z]\w*", re.IGNORECASE | re.DOTALL)
"""As no shipped name ends: `p3.8xlarge` has a digit behind its point."""


def names(kind: str) -> list[str]:
    """Return the shipped names of `kind`, `topology` or `workload`, sorted."""
    return sorted(_index(kind))


def find(kind: str, name: str) -> Path:
    """Return the path of `name`: a file or pipe that exists, `-` as it is, else a shipped name.

    Raises:
        UnknownNameError: where it is neither; the nearest shipped names are given, and where it is written as a path
            the nearest files beside it.
    """
    if name == "-" or (os.path.exists(name) and not os.path.isdir(name)):
        return Path(name)
    index = _index(kind)
    if name not in index:
        if is_path(name):
            raise _missing_file(kind, name)
        for file in (name + ending for ending in (*_SUFFIXES[kind], *_ENDINGS.get(kind, ()))):
            if os.path.isfile(file):
                raise UnknownNameError(f"unknown {kind} {name!r}", remedy=f"did you mean {file}?")
        raise UnknownNameError.among(kind, name, index)
    return index[name]


def is_path(name: str) -> bool:
    """Return whether `name` is written as a file's: with a folder, or an ending."""
    return Path(name).name != name or _FILE_ENDING.fullmatch(name) is not None


def _missing_file(kind: str, name: str) -> UnknownNameError:
    what = "is a folder, not a file" if os.path.isdir(name) else "no such file"
    near = [*_files_near(kind, name), *difflib.get_close_matches(name, names(kind), n=1, cutoff=0.7)]
    listed = f"`ddpsim {_COMMANDS[kind]} list`" if kind in _COMMANDS else ", ".join(names(kind))
    remedy = f"did you mean {', '.join(near)}?" if near else f"shipped names: {listed}"
    return UnknownNameError(what, place=name, remedy=remedy)


def _files_near(kind: str, name: str) -> list[str]:
    """Return the files in the folder of `name` that are called about as it is, as it is written."""
    folder, own = os.path.split(name)
    try:
        there = os.listdir(folder or os.curdir)
    except (OSError, ValueError):  # no such folder, or a name that none can have
        return []
    endings = _ENDINGS.get(kind, _SUFFIXES[kind])
    files = [each for each in there if each.endswith(endings)]
    return [os.path.join(folder, each) for each in difflib.get_close_matches(own, files, n=2, cutoff=0.6)]


def path(kind: str, name: str) -> Path:
    """Return the path of the shipped `name`, one of `names`, whatever files lie about."""
    return _index(kind)[name]


def has(kind: str, file: Path) -> bool:
    """Return whether `file` is a shipped one of `kind`, as `find` and `path` give it."""
    return file.parent in FOLDERS[kind]


def _index(kind: str) -> dict[str, Path]:
    folder = next((folder for folder in FOLDERS[kind] if folder.is_dir()), None)
    files = sorted(folder.iterdir()) if folder else []
    return {
        file.name.removesuffix(suffix): file
        for suffix in _SUFFIXES[kind]
        for file in files
        if file.name.endswith(suffix)
    }
