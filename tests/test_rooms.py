"""Rooms: which modules of a room others use, and which rooms predict alone.

`python -m tests.test_rooms ROOM ...` prints the line that the docstring of a room's `__init__` owes, as
`ddpsim.trace`; of all rooms where none is named.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import imported, modules

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "ddpsim", "ddpexec"
CORE = (
    "planning",
    "calibrating",
    "prediction",
    "simulation",
    "schedules",
    "collectives",
    "workload",
    "topology",
    "bucketing",
    "trace",
    "common",
)
"""The rooms that predict: command line, pages and importers of other tools' traces are around them."""
STATED = re.compile(r"^Public modules: ([\w.,\s]+?)\.$", re.MULTILINE)


def rooms() -> list[str]:
    """Return the rooms of both packages: their folders that are packages themselves."""
    return [
        f"{path.parts[-3]}.{path.parts[-2]}" for each in PACKAGES for path in sorted(ROOT.glob(f"{each}/*/__init__.py"))
    ]


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@cache
def used_outside() -> dict[str, set[str]]:
    """Return by room the modules in it that product code outside it imports, named from the room on.

    Names of a room's own `__init__` are no module's. The two packages' own pages of names are outside every room: what
    they import lazily stands there for type checkers too.
    """
    files = {name: path for package in PACKAGES for name, path in modules(ROOT / package).items()}
    used: dict[str, set[str]] = {room: set() for room in rooms()}
    for importer, path in files.items():
        for module in imported(path, files):
            room = room_of(module)
            if room in used and module != room and room_of(importer) != room:
                used[room].add(module.removeprefix(f"{room}."))
    return used


def stated(docstring: str) -> set[str] | None:
    """Return the modules that a docstring's line names, or None where it has none."""
    match = STATED.search(docstring)
    return None if match is None else set(re.split(r",\s*", match[1])) - {"none"}


def line(room: str) -> str:
    """Return the line that a room's docstring owes, wrapped as the formatter has lines."""
    return textwrap.fill(f"Public modules: {', '.join(sorted(used_outside()[room])) or 'none'}.", width=120)


def docstring_of(room: str) -> str:
    path = ROOT.joinpath(*room.split("."), "__init__.py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("room", rooms())
def test_a_room_states_which_of_its_modules_others_import(room):
    """What is not stated is the room's own: it may move or go without a look at the rest of the product."""
    assert stated(docstring_of(room)) == used_outside()[room], (
        f"{room}: import its public modules only, or have its __init__ say:\n\n{line(room)}\n"
    )


def test_a_stated_line_may_wrap_name_inner_modules_or_none():
    assert stated("A room.\n\nPublic modules: one, inner.two,\nthree.\n\nMore. Public words.") == {
        "one",
        "inner.two",
        "three",
    }
    assert stated("A room.\n\nPublic modules: none.") == set()
    assert stated("A room.\n\nPublic modules of others: one.") is None


def test_imports_are_found_in_functions_for_type_checkers_and_of_whole_packages(tmp_path):
    path = tmp_path / "one.py"
    path.write_text(
        "import ddpsim.trace.json\nif TYPE_CHECKING:\n    from ddpsim.bucketing import caps, LaunchQueue\n"
        "def late():\n    from ddpsim.workload.profile import Workload\n"
    )
    found = imported(path, modules(ROOT / "ddpsim"))
    assert found == {"ddpsim.trace.json", "ddpsim.bucketing.caps", "ddpsim.bucketing", "ddpsim.workload.profile"}


def test_the_core_alone_predicts(tmp_path):
    """Nothing of the core needs the command line, a page or another tool's traces: without them it answers alike."""
    package = tmp_path / "ddpsim"
    for room in CORE:
        shutil.copytree(ROOT / "ddpsim" / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ddpsim" / "__init__.py", package)
    for shipped in ("topologies", "gpus", "traces/workloads"):
        shutil.copytree(ROOT / shipped, tmp_path / shipped)
    predicted = [
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import ddpsim; print(repr(ddpsim.predict('resnet50', 'dgx-1v').summary), ddpsim.__file__)",
            ],
            cwd=tmp_path,
            env={"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        for folder in (tmp_path, ROOT)
    ]
    assert [each.stderr for each in predicted] == ["", ""]
    alone, whole = (each.stdout.split() for each in predicted)
    assert alone.pop() == str(package / "__init__.py")
    assert alone == whole[:-1]


if __name__ == "__main__":
    for each in sys.argv[1:] or rooms():
        print(f"{each}: {line(each)}")
