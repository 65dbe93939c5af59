from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpexec.__main__ import main

Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--wrong"], ["--wrong", "python -m ddpexec run --help"]),
        (["run", "--out", "x", "--iterations", "abc"], ["--iterations", "abc"]),
        (["run"], ["--out", "python -m ddpexec run --help"]),
        (["run", "--gpu", "H100"], ["--gpu", "which `python -m ddpexec estimate` has; "]),
        (["runn"], ["'runn'", "python -m ddpexec --help"]),
    ],
)
def test_a_wrong_call_gets_one_line_and_exit_code_2(refusal: Refusal, arguments: list[str], parts: list[str]) -> None:
    said = refusal(*arguments)
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert all(part in said for part in parts), said


def test_only_rank_0_tells_of_a_wrong_call(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert refusal("run", "--wrong") == ""


def test_help_names_options_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--help"])
    assert not end.value.code
    assert "--gradient-as-bucket-view" in capsys.readouterr().out


def test_without_arguments_the_help_is_shown(refusal: Refusal) -> None:
    assert refusal().startswith("Usage: python -m ddpexec")


@pytest.mark.parametrize(
    "words",
    [
        ["capture", "--model", "mlp", "-o", "file/below.json"],
        ["estimate", "--model", "mlp", "--gpu", "V100", "-o", "file/below.json"],
        ["microbench", "-o", "file/below.json"],
        ["run", "--model", "mlp", "--out", "file/below"],
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    for module in ("ddpexec.capturing.capture", "ddpexec.groups.launched", "ddpexec.microbench.microbench"):
        monkeypatch.setitem(sys.modules, module, None)
    said = refusal(*words)
    assert said.startswith(f"error: {words[-2]} {words[-1]}: cannot be written")
    assert said.count("\n") == 1


def test_several_ranks_do_not_share_standard_input(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["run", "--workload", "-", "--out", "x"], ["microbench", "--under-load", "-", "-o", "x"]):
        assert "cannot read one standard input" in refusal(*words)
