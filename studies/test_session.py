from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from studies.session import FOLDER, once_a_session


class Asked(NamedTuple):
    folder: str
    number: int


def made(asked: Asked) -> list[int]:
    """Return what is asked for, and note which process made it."""
    with Path(asked.folder, "made").open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    return [asked.number, os.getpid()]


def asking(asked: Asked) -> list[int]:
    return once_a_session(made)(asked)


@pytest.mark.parametrize("shared", [True, False])
def test_processes_that_share_a_folder_make_a_result_once(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    if shared:
        monkeypatch.setenv(FOLDER, str(tmp_path))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(asking, [Asked(str(tmp_path), 7)] * 2 + [Asked(str(tmp_path), 8)], chunksize=1)
    assert [number for number, _ in found] == [7, 7, 8]
    assert len((tmp_path / "made").read_text().splitlines()) == (2 if shared else 3)
    assert (found[0] == found[1]) or not shared


def test_workers_of_this_session_have_its_folder() -> None:
    assert Path(os.environ[FOLDER]).is_dir()
