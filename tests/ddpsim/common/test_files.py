"""Files are written whole, through links and devices, and read from pipes and standard input."""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.files import check_writable, check_writable_folder, read_json, read_text, write_whole
from ddpsim.common.shipped import find


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_a_link_to_nothing_yet_makes_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "deeper" / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "deeper" / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_writable(pipe)
    write_whole(pipe, "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_is_written_to_and_stays_one(tmp_path: Path) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_text("")
    except PermissionError:
        pytest.skip("no device nodes here")
    write_whole(node, "gone")
    assert stat.S_ISCHR(node.stat().st_mode)


def test_an_open_descriptor_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "open.txt").open("w") as file:
        write_whole(f"/dev/fd/{file.fileno()}", "first ")
        file.write("second")
    assert (tmp_path / "open.txt").read_text() == "first second"


def test_a_name_as_long_as_the_system_takes_is_written(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 255), "x")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["folder", "loop", "n" * 300, "file/below"])
def test_what_cannot_be_written_is_found_before_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.iterdir())
    for attempt in (check_writable, lambda path: write_whole(path, "x")):
        with pytest.raises(InputError, match="cannot be written"):
            attempt(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_checking_makes_no_folder(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "x.json")
    check_writable_folder(tmp_path / "new")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        check_writable_folder(tmp_path / "file" / "folder")


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1]")))
    assert read_json("-", WorkloadError, "x") == [1]
    with pytest.raises(InputError, match="was read already"):
        read_text("-", WorkloadError, "x")


def test_a_pipe_is_a_file_to_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert find("workload", str(tmp_path / "pipe")) == tmp_path / "pipe"
