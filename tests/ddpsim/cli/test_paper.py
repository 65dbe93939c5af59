"""`ddpsim paper` hands over to the study, and says where that is to be had."""

from __future__ import annotations

import types

import pytest

from ddpsim.cli import paper
from ddpsim.cli.app import run


def test_every_argument_is_the_studys_and_its_exit_code_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def main(arguments: list[str]) -> int:
        given.extend(arguments)
        return 2

    monkeypatch.setattr(paper, "import_module", lambda name: types.SimpleNamespace(main=main))
    assert run(["paper", "fig6", "--json", "--out", "here", "--help"]) == 2
    assert given == ["fig6", "--json", "--out", "here", "--help"]


def test_without_the_checkout_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "find_spec", lambda name: None)
    assert run(["paper", "fig6"]) == 2
    assert "clone the repository" in capsys.readouterr().err
