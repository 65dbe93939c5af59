"""Commands of studies that product, documentation and Makefile name: each is there, and says what it does."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from studies.command import ROOT, parser

NAMED = ("ddpsim", "ddpexec", "gpus", "topologies", "docs", "studies", "Makefile", "README.md")
SUFFIXES = {".py", ".yaml", ".md", ".in", ""}
COMMAND = re.compile(r"(?:python3?|\(BIN\)/python) -m (studies(?:\.[a-z]\w*)+)")
PLACE = re.compile(r"\bstudies/[\w./-]*\w")


def texts() -> Iterator[str]:
    for name in NAMED:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file.read_text() for file in files if file.is_file() and file.suffix in SUFFIXES)


def commands() -> list[str]:
    return sorted({command for text in texts() for command in COMMAND.findall(text)})


def test_the_commands_of_constants_are_among_those_that_are_tried() -> None:
    assert {"studies.accuracy.by_hand", "studies.published.device_spread", "studies.retiming"} <= set(commands())


@pytest.mark.filterwarnings("ignore:.* found in sys.modules after import")
@pytest.mark.parametrize("name", commands())
def test_a_command_that_is_named_is_there_and_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    monkeypatch.setattr(sys, "argv", [found.origin.replace("__init__", "__main__"), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.lower().lstrip().startswith("usage: ")


def test_folders_and_files_of_studies_that_the_product_names_are_there() -> None:
    product = (path for package in ("ddpsim", "ddpexec") for path in (ROOT / package).rglob("*.py"))
    named = {place for path in product for place in PLACE.findall(path.read_text())}
    assert "studies/bands/bands.md" in named
    assert not [place for place in named if not (ROOT / place).exists()]


def test_a_command_without_options_refuses_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(ROOT / "studies" / "accuracy" / "by_hand.py"), "more"])
    with pytest.raises(SystemExit, match="2"):
        parser("What it does.").parse_args()
    assert "usage: python -m studies.accuracy.by_hand [-h]" in capsys.readouterr().err
