"""What is kept of points: whole lines, found again by their keys, whatever became of the process that wrote them."""

from __future__ import annotations

import json
import os
import zlib
from functools import partial
from pathlib import Path

import pytest

from ddpsim.errors import InputError
from ddpsim.stopping import Stopped
from ddpsim.workers.asked import Workers
from ddpsim.workers.journal import ENDING, Journal, JournalEntry, journal_beside
from ddpsim.workers.kept import Task, compute

KEYS = [f"{number:x}" for number in range(20)]


def told(stop_at: int | None, number: int, progress: object = None) -> JournalEntry:
    if number == stop_at:
        raise Stopped(2)
    return JournalEntry(json.dumps({"n": number, "text": '", "document": {}}'}), (f'a "note", "document": {number}',))


def test_an_entry_is_read_as_it_was_written_and_each_line_is_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    entries = {key: told(None, number) for number, key in enumerate(KEYS)}
    for key, entry in entries.items():
        journal.add(key, entry)
    journal.close(done=False)
    again = Journal(tmp_path / "journal")
    assert again.entries == entries
    lines = [json.loads(line) for line in again.path.read_text().splitlines()]
    assert [line["document"]["n"] for line in lines] == list(range(20))
    again.close(done=True)
    assert not again.path.exists()


@pytest.mark.parametrize("left", [2, 20, 100])
def test_a_torn_line_does_not_count_and_spoils_none_after_it(tmp_path: Path, left: int) -> None:
    journal = Journal(tmp_path / "journal")
    for key in ("a", "b"):
        journal.add(key, told(None, 1))
    journal.close(done=False)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-left])
    torn = Journal(journal.path)
    assert list(torn.entries) == ["a"]
    torn.add("c", told(None, 3))
    torn.close(done=False)
    last = Journal(journal.path)
    assert list(last.entries) == ["a", "c"]
    last.close(done=True)


def test_a_damaged_line_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add("a", told(None, 1))
    journal.close(done=False)
    journal.path.write_bytes(journal.path.read_bytes().replace(b'{"n": 1', b'{"n": 7'))
    damaged = Journal(journal.path)
    assert damaged.entries == {}
    damaged.close(done=False)
    journal.path.write_bytes(b'{"point": "a", "crc32": %s, "notes": [], "document": 1}\n' % (b"9" * 5000))
    assert Journal(journal.path).entries == {}


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    with journal_beside(tmp_path / "out.jsonl") as journal:
        assert journal is not None
        with pytest.raises(InputError, match=f"out.jsonl{ENDING}: another process is writing it"):
            Journal(journal.path)
    Journal(journal.path).close(done=True)


def test_there_is_none_beside_what_is_no_file() -> None:
    for path in (None, "-", os.devnull, "/dev/stdout"):
        with journal_beside(path) as journal:
            assert journal is None


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_stopped_computation_did_is_not_done_again(tmp_path: Path, count: int) -> None:
    out, found = tmp_path / "out.jsonl", dict[int, JournalEntry]()
    with pytest.raises(Stopped), journal_beside(out) as journal, Workers(workers=count).crew(20) as crew:
        compute(Task(partial(told, 9), range(20), KEYS), crew=crew, journal=journal, found=found)
    assert set(range(9)) <= set(found)
    assert 9 not in found

    seen: list[int] = []

    def rest(number: int, progress: object) -> JournalEntry:
        seen.append(number)
        return told(None, number)

    shown: list[tuple[int, int]] = []
    with journal_beside(out) as journal:
        again = compute(
            Task(rest, range(20), KEYS), journal=journal, progress=lambda done, total: shown.append((done, total))
        )
    assert sorted(seen) == sorted(set(range(20)) - set(found))
    assert again == [told(None, number) for number in range(20)]
    assert shown[0] == (len(found), 20)
    assert shown[-1] == (20, 20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_in_a_journals_place_is_not_followed(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / f"out.json{ENDING}", tmp_path / "victim"
    victim.write_text("somebody's\n")
    {"link": lambda: path.symlink_to(victim), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(InputError, match="cannot be written"), journal_beside(tmp_path / "out.json"):
        pass
    assert victim.read_text() == "somebody's\n"


@pytest.mark.parametrize("notes", ["[1]", "{}x", "7", '["a"'])
@pytest.mark.parametrize("document", ["{", "[1]"])
def test_an_entry_with_a_right_sum_and_wrong_contents_is_computed_anew(
    tmp_path: Path, notes: str, document: str
) -> None:
    path = tmp_path / "journal"
    body = f'"notes": {notes}, "document": {document}'.encode()
    path.write_bytes(b'{"point": "a", "crc32": %d, ' % zlib.crc32(body) + body + b"}\n")
    journal = Journal(path)
    assert list(journal.entries) == ["a"]
    task = Task(partial(told, None), [3], ["a"])
    assert compute(task, journal=journal) == [told(None, 3)]
    journal.close(done=False)
    assert Journal(path).entries["a"] == told(None, 3)
