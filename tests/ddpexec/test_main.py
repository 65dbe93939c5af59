from __future__ import annotations

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
