"""What is read has a bound on its bytes after decompression, on its depth and on its counts, which the error states."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.common import files, strict
from ddpsim.common.documents.yaml_reading import read_mapping
from ddpsim.common.errors import InputError, TraceError, WorkloadError
from ddpsim.common.files import BoundedFile, read_json, read_text
from ddpsim.explaining.files import read_ranks
from ddpsim.explaining.recorder import read_plain, read_recorder
from ddpsim.topology.xml_text import read_xml
from ddpsim.trace.json.streaming import StreamedTrace
from ddpsim.workload.files import load_workload


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of a few kilobytes."""
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 12)


def test_bytes_after_decompression_are_bounded_and_the_bound_is_said(tmp_path: Path) -> None:
    file = tmp_path / "zeros.json.gz"
    file.write_bytes(gzip.compress(b" " * (1 << 20)))
    with pytest.raises(WorkloadError, match=r"zeros.json.gz: more than 65,536 bytes after decompression"):
        read_json(file, WorkloadError, "x", most=1 << 16)
    with pytest.raises(WorkloadError, match=r"/dev/zero: more than 65,536 bytes"):
        read_json("/dev/zero", WorkloadError, "x", most=1 << 16)


def test_a_byte_of_gzip_stands_for_so_many_at_most(tmp_path: Path, small: None) -> None:
    file = tmp_path / "bomb.json.gz"
    file.write_bytes(gzip.compress(b" " * (1 << 20)))
    assert file.stat().st_size < 2000
    with pytest.raises(TraceError, match="after decompression"):
        list(StreamedTrace(file, TraceError, "x").events())


def test_what_is_at_the_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    with BoundedFile(tmp_path / "f", "f", InputError, "x", 4) as file:
        assert (file.read(3), file.read(), file.read()) == (b"123", b"4", b"")


@pytest.mark.parametrize("at", [5, 60, -9, None])
def test_gzip_that_is_damaged_or_cut_is_one_error_in_every_reader(tmp_path: Path, at: int | None) -> None:
    whole = bytearray(gzip.compress(bytes(range(256)) * 40 + b'{"traceEvents": []}'))
    if at is None:
        del whole[-9:]
    else:
        whole[at] ^= 0xFF
    file = tmp_path / "rank0.json.gz"
    file.write_bytes(whole)
    readers: tuple[Callable[[], object], ...] = (
        lambda: read_text(file, TraceError, "x"),
        lambda: read_ranks(tmp_path, None, None),
        lambda: list(StreamedTrace(file, TraceError, "x").events()),
    )
    for read in readers:
        with pytest.raises(TraceError):
            read()


def test_values_of_json_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="more than 3 values, the most that is read"):
        strict.check_count("[1,1,1,1]", "f", InputError, "x", 3)


def test_wrong_items_of_a_list_are_not_told_by_the_million(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text('{"schema": "ddpsim.workload/1", "parameters": [' + "1," * 200_000 + "1]}")
    with pytest.raises(WorkloadError, match=r"parameters: .* 200000 or fewer belong in it"):
        load_workload(file)


def test_merged_keys_of_yaml_are_counted() -> None:
    text = "{x: 1, y: 2}"
    for level in range(60):
        text = f"{{<<: [&a{level} {text}, *a{level}]}}"
    with pytest.raises(InputError, match="more than 100,000 keys"):
        read_mapping(f"top: {text}", "f.yaml")
    with pytest.raises(InputError, match=r"more than 2,097,152 characters"):
        read_mapping(" " * (1 << 22), "f.yaml")


def test_elements_of_xml_are_counted() -> None:
    with pytest.raises(InputError, match="more than 100,000 elements"):
        read_xml("<a>" + "<b/>" * 100_001 + "</a>", "f.xml")


def test_tuples_of_tuples_end() -> None:
    with pytest.raises(TraceError, match="a tuple of more than 10,000 values"):
        read_plain(_keyed(60), "dump")


def _keyed(levels: int) -> bytes:
    """Return a pickle of a dictionary whose key is a tuple of a tuple twice, and so on, which pickling would hash."""
    return b"\x80\x04})" + b"2\x86" * levels + b"K\x01s."


def test_lists_that_hold_one_another_are_shown_shortened(tmp_path: Path) -> None:
    shapes: list[object] = []
    for _ in range(60):
        shapes = [shapes, shapes]
    entry = {"collective_seq_id": 1, "time_created_ns": 1, "input_sizes": shapes, "process_group": shapes}
    for rank in (0, 1):
        (tmp_path / f"dump{rank}").write_bytes(pickle.dumps({"entries": [entry]}))
    assert read_recorder(tmp_path).collectives == 1


@pytest.mark.parametrize("stamp", [10**400, -1, True, 1.5])
def test_a_stamp_that_is_no_time(tmp_path: Path, stamp: object) -> None:
    entry = {"collective_seq_id": 1, "time_created_ns": stamp}
    (tmp_path / "dump0").write_bytes(pickle.dumps({"entries": [entry]}))
    with pytest.raises(TraceError, match="holds no collective"):
        read_recorder(tmp_path)


def test_a_dump_whose_name_has_twenty_digits(tmp_path: Path) -> None:
    (tmp_path / f"dump{'9' * 20}").write_bytes(
        pickle.dumps({"entries": [{"collective_seq_id": 1, "time_created_ns": 1}]})
    )
    with pytest.raises(TraceError, match="no rank below 1,000,000"):
        read_recorder(tmp_path)


def test_a_pipe_is_read_through_the_same_reader() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as out:
        out.write(gzip.compress(b"[1]"))
    assert read_json(f"/dev/fd/{reading}", InputError, "x") == [1]
    os.close(reading)
