"""`python -m ddpexec campaign` on a pretended lab: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpexec.__main__ import main
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(FILE)
    return path


def code_of(*arguments: object) -> object:
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as end:
        main(["campaign", *map(str, arguments)])
    return end.value.code


def test_json_is_one_document_with_the_summarys_numbers(
    file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.with_name("out")
    assert code_of(file, "--out", out, "--json") == 0
    printed, kept = json.loads(capsys.readouterr().out), json.loads((out / "summary.json").read_text())
    assert printed
    assert kept.items() >= printed.items()
    assert len(kept["results"]) == len(lab.configurations) == 2


def test_without_json_the_summary_is_printed_and_what_goes_on_told(
    file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.with_name("out")
    assert code_of(file, "--out", out) == 0
    captured = capsys.readouterr()
    assert captured.out.rstrip() == (out / "summary.md").read_text().rstrip()
    for number, name in enumerate(lab.configurations, 1):
        assert f"[{number}/2] {name} (about " in captured.err


def test_a_failure_is_named_at_the_end_and_makes_the_exit_code_one(
    file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.failing = "cap5"
    assert code_of(file, "--out", file.with_name("out"), "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    (failed,) = (name for name, each in lab.configurations.items() if each.caps == "cap5")
    head, told = captured.err.splitlines()[-2:]
    assert head == "1 of 2 configurations failed:"
    assert told.startswith(f"  {failed}: ")
    assert "a rank died" in told


def test_a_pattern_that_fits_nothing_ends_with_2_before_anything_runs(
    file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(file, "--out", file.with_name("out"), "--only", "mlp-flat-wire2-cap6") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: --only: unknown configuration 'mlp-flat-wire2-cap6'; did you mean ")
    assert captured.err.count("\n") == 1
    assert lab.commands == []


def test_only_what_fits_a_pattern_runs_and_what_was_done_before_still_counts(file: Path, lab: PretendedLab) -> None:
    out = file.with_name("out")
    assert code_of(file, "--out", out, "--only", "*-cap5") == 0
    assert [path.parent.name for path in out.glob("runs/*/result.json")] == ["mlp-flat-wire2-cap5"]
    assert lab.commands == ["microbench", "run", "run"]
    assert code_of(file, "--out", out, "--only", "*-default") == 0
    assert json.loads((out / "summary.json").read_text())["configurations"] == 2


def test_a_packed_campaign_is_there_again_when_unpacked(file: Path, lab: PretendedLab) -> None:
    out, record, again = (file.with_name(name) for name in ("out", "record", "again"))
    assert code_of(file, "--out", out) == 0
    assert code_of(file, "--out", out, "--pack", record) == 0
    assert code_of(file, "--out", again, "--unpack", record) == 0
    lab.commands = []
    assert code_of(file, "--out", again) == 0
    assert lab.commands == []
    for name in lab.configurations:
        kept, given = ((folder / "runs" / name / "prediction.json").read_bytes() for folder in (out, again))
        assert given == kept


def test_packing_tells_what_has_no_result(file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.failing, out, record = "cap5", file.with_name("out"), file.with_name("record")
    assert code_of(file, "--out", out) == 1
    capsys.readouterr()
    assert code_of(file, "--out", out, "--pack", record) == 0
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2 configurations have no result and are left out:",
        "  mlp-flat-wire2-cap5",
    ]
    assert len(list((record / "runs").iterdir())) == 1


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("option", "words"), [("--pack", "no finished configuration"), ("--unpack", "campaign.yaml")])
def test_what_cannot_be_packed_or_unpacked_ends_with_2(
    file: Path, capsys: pytest.CaptureFixture[str], option: str, words: str
) -> None:
    assert code_of(file, "--out", file.with_name("out"), option, file.with_name("record")) == 2
    assert words in capsys.readouterr().err
