"""Names of shipped files to their paths, in an installed wheel and in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from ddpsim.errors import UnknownNameError

_PACKAGE = Path(__file__).parent
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
_COMMANDS = {"topology": "topo", "workload": "workload"}


def names(kind: str) -> list[str]:
    """Return the shipped names of `kind`, `topology` or `workload`, sorted."""
    return sorted(_index(kind))


def find(kind: str, name: str) -> Path:
    """Return the path of `name`: a file or pipe that exists, `-` as it is, else a shipped name.

    Raises:
        UnknownNameError: where it is neither; the nearest shipped names are given, unless it is written as a path.
    """
    if name == "-" or (os.path.exists(name) and not os.path.isdir(name)):
        return Path(name)
    index = _index(kind)
    if name not in index:
        if Path(name).name != name or name.endswith(_ENDINGS[kind]):
            what = "is a folder, not a file" if os.path.isdir(name) else "no such file"
            raise UnknownNameError(what, place=name, remedy=f"shipped names: `ddpsim {_COMMANDS[kind]} list`")
        raise UnknownNameError.among(kind, name, index)
    return index[name]


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
