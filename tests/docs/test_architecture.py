"""The page on architecture is true: its paths exist, its arrows are imports, its rooms are those of the contracts."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
BLOCKS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def arrows(trees: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the file above and the file behind each `-> FILE`: that above stands less far to the right."""
    for tree in trees:
        above: list[tuple[int, str]] = []
        for line in tree.splitlines():
            found = re.match(r"( *)(?:-> )?(ddp\w+/\S+\.py)", line)
            assert found is not None, line
            indent, file = len(found[1]), found[2]
            above = [each for each in above if each[0] < indent or "-> " not in line]
            if "-> " in line:
                yield above[-1][1], file
            above.append((indent, file))


def imported(file: str) -> set[str]:
    """Return the modules that a file imports, at its head or inside a function, and the names that it takes of them."""
    found = set[str]()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


ARROWS = list(arrows([block for block in BLOCKS if "-> ddp" in block]))


def test_the_ways_of_both_packages_are_on_the_page() -> None:
    assert {each.split("/")[0] for pair in ARROWS for each in pair} == {"ddpsim", "ddpexec"}
    assert {"ddpsim/cli/predict.py", "ddpexec/running/run.py"} <= {above for above, _ in ARROWS}


@pytest.mark.parametrize(("above", "below"), ARROWS, ids=lambda file: file)
def test_every_arrow_is_an_import(above: str, below: str) -> None:
    assert below.removesuffix(".py").replace("/", ".") in imported(above)


@pytest.mark.parametrize("package", ["ddpsim", "ddpexec"])
def test_rooms_stand_in_the_order_of_their_contract(package: str) -> None:
    (layers,) = (each["layers"] for each in CONTRACTS if each.get("containers") == [package])
    floors = [[room.strip() for room in layer.split("|")] for layer in layers if layer != "__main__"]
    rooms = next(block for block in BLOCKS if block.startswith("ddpsim\n")).split("\n\n")
    (listed,) = (part.splitlines()[1:] for part in rooms if part.splitlines()[0] == package)
    named = [line.split()[0] for line in listed]
    assert sorted(named) == sorted(room for floor in floors for room in floor)
    left = list(named)
    for floor in floors:
        assert set(left[: len(floor)]) == set(floor)
        left = left[len(floor) :]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?<![\w/.])(?:\w+/)+\w*(?:\.\w+)?", PAGE))))
def test_every_path_on_the_page_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_ten_changes_name_their_files_and_tests() -> None:
    table = PAGE.partition("| to add | change | test |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 10
    for row in table:
        _, _, change, test, _ = row.split("|")
        assert re.search(r"`(ddp\w+|gpus)/", change), row
        assert re.search(r"`tests/.*\.py`", test), row
