"""Records that earlier versions packed load in this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.validation.evidence import load

VERSIONS = sorted(
    path for path in (Path(__file__).resolve().parents[2] / "tests" / "kept").iterdir() if (path / "record").is_dir()
)


@pytest.mark.parametrize("kept", VERSIONS, ids=lambda path: path.name)
def test_a_campaigns_record(kept: Path, tmp_path: Path) -> None:
    found = load(kept / "record", tmp_path)
    assert not found.missing
    assert [each.configuration.name for each in found.recorded] == ["mlp-delayed-wire5-view-ddpexec-default"]
    assert found.recorded[0].before.result.predicted_s == pytest.approx(2.128484152829906)
