from __future__ import annotations

import pytest

from ddpsim.common import shipped
from ddpsim.common.errors import UnknownNameError


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A checkout's folder with files in it; the wheel's does not exist."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("dgx-1v.yaml", "p3.8xlarge.yaml", "notes.txt", "resnet50.json", "bert.json.gz"):
        (folder / name).touch()
    missing = tmp_path / "wheel"
    monkeypatch.setattr(shipped, "FOLDERS", {"topology": (missing, folder), "workload": (missing, folder)})
    return missing, folder


def test_names_are_sorted_and_without_suffix(folders):
    assert shipped.names("topology") == ["dgx-1v", "p3.8xlarge"]
    assert shipped.names("workload") == ["bert", "resnet50"]


def test_find_takes_a_shipped_name_or_a_file(folders, tmp_path):
    assert shipped.find("topology", "p3.8xlarge") == folders[1] / "p3.8xlarge.yaml"
    own = tmp_path / "dgx-1v"
    own.touch()
    assert shipped.find("topology", str(own)) == own


def test_an_installed_wheels_folder_comes_first(folders):
    folders[0].mkdir()
    (folders[0] / "installed.yaml").touch()
    assert shipped.names("topology") == ["installed"]


def test_an_unknown_name_gets_the_nearest(folders):
    with pytest.raises(UnknownNameError, match="unknown topology 'dgx-1'; did you mean dgx-1v"):
        shipped.find("topology", "dgx-1")


@pytest.mark.parametrize("name", ["capture.json", "capture.json.gz", "capture.jsn", "runs/capture"])
def test_a_path_without_a_file_is_said_to_be_missing(folders, name):
    with pytest.raises(UnknownNameError, match=rf"^{name}: no such file; shipped names: `ddpsim workload list`$"):
        shipped.find("workload", name)


def test_a_name_whose_file_lies_here_gets_the_file(folders, tmp_path, monkeypatch):
    for there in ("mine.json", "old.json.gz", "box.yml"):
        (tmp_path / there).touch()
    monkeypatch.chdir(tmp_path)
    for kind, name, file in (
        ("workload", "mine", "mine.json"),
        ("workload", "old", "old.json.gz"),
        ("topology", "box", "box.yml"),
    ):
        with pytest.raises(UnknownNameError, match=rf"^unknown {kind} '{name}'; did you mean {file}\?$"):
            shipped.find(kind, name)


@pytest.mark.parametrize("name", ["mine.jsn", "./mine.json.gs", "mein.json"])
def test_a_path_without_a_file_gets_the_nearest_file_beside_it(folders, name, tmp_path, monkeypatch):
    for there in ("mine.json", "notes.txt", "mine.yaml"):
        (tmp_path / there).touch()
    monkeypatch.chdir(tmp_path)
    near = "./mine.json" if name.startswith("./") else "mine.json"
    with pytest.raises(UnknownNameError, match=rf"^{name}: no such file; did you mean {near}\?$"):
        shipped.find("workload", name)


def test_a_shipped_name_that_looks_like_a_file_gets_the_nearest_name(folders):
    with pytest.raises(UnknownNameError, match=r"^p3.xlarge: no such file; did you mean p3.8xlarge\?$"):
        shipped.find("topology", "p3.xlarge")
    with pytest.raises(UnknownNameError, match=r"^unknown topology 'p3.8xlrge'; did you mean p3.8xlarge"):
        shipped.find("topology", "p3.8xlrge")


@pytest.mark.parametrize("name", ["runs/tasks", "tasks.json", "taks"])
def test_an_order_trace_is_looked_for_alike(name):
    with pytest.raises(UnknownNameError, match=r"no such file; |did you mean tasks"):
        shipped.find("order trace", name)


def test_a_folder_is_said_to_be_one(folders, tmp_path):
    with pytest.raises(UnknownNameError, match="is a folder, not a file; shipped names: `ddpsim topo list`"):
        shipped.find("topology", str(tmp_path))


def test_without_folders_nothing_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "FOLDERS", {"topology": (tmp_path / "none",)})
    assert shipped.names("topology") == []
    with pytest.raises(UnknownNameError):
        shipped.find("topology", "x")


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_an_unknown_one(folders, name):
    with pytest.raises(UnknownNameError):
        shipped.find("workload", name)
