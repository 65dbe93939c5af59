from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddpexec.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--wrong"], ["--wrong", "python -m ddpexec run --help"]),
        (["run", "--out", "x", "--iterations", "abc"], ["--iterations", "abc"]),
        (["run"], ["--out", "python -m ddpexec run --help"]),
        (["runn"], ["'runn'", "python -m ddpexec --help"]),
    ],
)
def test_a_wrong_call_gets_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert all(part in captured.err for part in parts), captured.err


def test_only_rank_0_tells_of_a_wrong_call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as end:
        main(["run", "--wrong"])
    assert end.value.code == 2
    assert capsys.readouterr().err == ""


def test_help_names_options_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", "--help"])
    assert not end.value.code
    assert "--gradient-as-bucket-view" in capsys.readouterr().out


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("Usage: python -m ddpexec")


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
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    for module in ("ddpexec.capturing.capture", "ddpexec.groups.launched", "ddpexec.microbench.microbench"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as end:
        main(words)
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert told.startswith(f"error: {words[-1]}: cannot be written")
    assert told.count("\n") == 1


def test_several_ranks_do_not_share_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (["run", "--workload", "-", "--out", str(tmp_path)], ["microbench", "--under-load", "-", "-o", "x"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
        assert "cannot read one standard input" in capsys.readouterr().err
