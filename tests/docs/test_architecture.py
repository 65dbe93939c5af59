"""The page on architecture names every room of both packages, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
FLOORS = re.findall(r"^```text\n(ddpsim .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
PLACES = (ROOT, ROOT / "ddpsim", ROOT / "ddpexec")


@pytest.mark.parametrize("package", ["ddpsim", "ddpexec"])
def test_every_room_stands_on_a_floor(package: str) -> None:
    part = FLOORS[FLOORS.index(package) :].split("\n\n")[0]
    places = (ROOT / package).iterdir()
    rooms = {file.stem for file in places if file.suffix == ".py" or (file / "__init__.py").is_file()}
    words = {word for line in part.splitlines()[1:] for word in re.findall(r"\w+", line.strip()[:38])}
    assert rooms - {"__init__", "__main__"} <= words


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)+\w*\.?\w*)`", PAGE))))
def test_every_path_on_the_page_is_there(path: str) -> None:
    assert any((place / path).exists() for place in PLACES)
