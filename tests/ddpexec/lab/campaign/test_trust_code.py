"""A campaign's file names code only where the caller says so, and never where nothing is to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpexec.lab.campaign.campaign import carry_out
from ddpexec.lab.campaign.spec import load_campaign
from ddpsim.common.errors import InputError
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab
from tests.ddpexec.lab.campaign.test_command import code_of

MODULE = """
from pathlib import Path
Path("ran").touch()
from ddpsim.schedules.schemes import naive as own
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign whose scheme is a module in the working folder that leaves a file where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path, module = tmp_path / "c.yaml", f"carried_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(MODULE)
    path.write_text(FILE.replace("wire_over_backward: 2,", f"scheme: '{module}:own', impl: ddpexec,"))
    return path


def test_a_file_that_is_only_read_runs_nothing(file: Path) -> None:
    assert load_campaign(file).configurations[0].run.options["scheme"].endswith(":own")
    assert not Path("ran").exists()


@pytest.mark.parametrize("option", ["--pack", "--unpack"])
def test_what_runs_nothing_imports_nothing(file: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("record/networks").mkdir(parents=True)
    Path("record/campaign.yaml").write_text(file.read_text())
    code_of(file, "--out", "out", option, "record")
    assert not Path("ran").exists()


def test_code_is_refused_with_the_flag_that_allows_it(
    file: Path, lab: PretendedLab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(file, "--out", "out") == 2
    assert "give --trust-code" in capsys.readouterr().err
    assert not Path("ran").exists()
    assert not Path("out").exists()


def test_trusted_code_runs(file: Path, lab: PretendedLab) -> None:
    campaign = load_campaign(file)
    lab.configurations = {each.name: each for each in campaign.configurations}
    results, failures = carry_out(campaign, Path("out"), lambda line: None, trust_code=True)
    assert failures == []
    assert len(results) == 2
    assert Path("ran").exists()


def test_trusted_code_that_is_no_scheme_is_refused_before_anything_runs(file: Path, lab: PretendedLab) -> None:
    file.write_text(file.read_text().replace(":own", ":none"))
    with pytest.raises(InputError, match="cannot be imported: AttributeError"):
        carry_out(load_campaign(file), Path("out"), lambda line: None, trust_code=True)
    assert lab.commands == []
