"""Every file of others that the tests keep says where it is from."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOTICE = (HERE / "NOTICE.md").read_text()
KEPT = [HERE / "data", *(HERE.parent / "studies" / name for name in ("accuracy", "estimates", "published"))]
FILES = sorted(file for folder in KEPT for file in folder.rglob("*") if file.suffix in (".csv", ".xml", ".txt", ".gz"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_of_others_names_its_source(file: Path) -> None:
    stated = file.suffix == ".csv" and any(line.startswith("# source:") for line in file.read_text().splitlines())
    assert stated or f"{file.name}`" in NOTICE, "add a row to tests/NOTICE.md"


def test_the_files_of_others_stay_small() -> None:
    assert sum(file.stat().st_size for file in FILES) < 2_000_000
