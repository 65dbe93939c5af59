"""What was read of shipped files is kept as compiled modules are, and made anew where anything it rests on changed."""

import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest

from ddpsim import load_topology, load_workload
from ddpsim.common import compiled, shipped
from ddpsim.common.compiled import ROOMS, read_compiled
from ddpsim.topology.gpus.table import read_gpu


@pytest.fixture
def reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    counted = []

    def read(path):
        counted.append(path)
        return path.read_text()

    return counted, read


def test_a_file_is_read_once_until_it_changes(tmp_path, reads):
    counted, read = reads
    path = tmp_path / "machine.yaml"
    path.write_text("one")
    assert [read_compiled(path, read) for _ in range(3)] == ["one"] * 3
    assert len(counted) == 1
    path.write_text("other")
    assert read_compiled(path, read) == "other"
    assert len(counted) == 2


def test_what_lies_beside_it_and_the_rooms_code_count_too(tmp_path, reads, monkeypatch):
    counted, read = reads
    path, folder = tmp_path / "machine.yaml", tmp_path / "gpus"
    path.write_text("one")
    folder.mkdir()
    read_compiled(path, read, beside=(folder,))
    (folder / "new.yaml").write_text("")
    read_compiled(path, read, beside=(folder,))
    assert len(counted) == 2
    monkeypatch.setattr(compiled, "stamp_of_modules", lambda: b"other")
    read_compiled(path, read, beside=(folder,))
    assert len(counted) == 3


def test_a_damaged_one_is_made_anew_and_nothing_is_kept_where_python_keeps_nothing(tmp_path, reads, monkeypatch):
    counted, read = reads
    path = tmp_path / "machine.yaml"
    path.write_text("one")
    read_compiled(path, read)
    [kept] = (tmp_path / "kept").rglob("*.pickle")
    kept.write_bytes(kept.read_bytes()[:-3])
    assert read_compiled(path, read) == "one"
    assert len(counted) == 2
    kept.unlink()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    read_compiled(path, read)
    assert not kept.exists()


@pytest.mark.parametrize(
    "read",
    [
        lambda: load_workload("gpt2-small"),
        lambda: load_topology("gb200-nvl72"),
        lambda: load_topology("4x1080ti-pcie"),
        lambda: read_gpu(shipped.path("gpu", "H100")),
    ],
)
def test_what_is_kept_is_of_rooms_whose_code_counts_and_is_the_same_again(read):
    made = read()
    data = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
    texts = [argument for code, argument, _ in pickletools.genops(data) if "UNICODE" in code.name]
    rooms = {text.split(".")[1] for text in texts if text.startswith("ddpsim.")}
    assert rooms <= set(ROOMS)
    assert repr(pickle.loads(data)) == repr(made)


def test_a_prediction_reads_no_shipped_file_twice(tmp_path):
    given = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    program = (
        "import contextlib, io, sys; from ddpsim.cli import main\n"
        "sys.argv = ['ddpsim', 'predict', '--workload', 'mlp', '--topology', 'dgx-1v', '--nodes', '2']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(sorted({'pydantic', 'yaml'} & {*sys.modules}))"
    )

    def run():
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=given)
        *text, libraries = done.stdout.splitlines()
        return text, libraries

    (first, asked), (second, unasked) = run(), run()
    assert first == second
    assert (asked, unasked) == ("['pydantic', 'yaml']", "[]")
    assert any(Path(tmp_path).rglob("dgx-1v.yaml*.pickle"))
