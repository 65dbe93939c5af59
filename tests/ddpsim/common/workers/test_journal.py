"""What is kept of answers: whole lines, found again by their keys, whatever became of the process that wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddpsim.common.errors import InputError
from ddpsim.common.workers import journal as journals
from ddpsim.common.workers.journal import ENDING, Journal, open_journal

KEYS = [f"{number:x}" for number in range(20)]


def answer(number: int) -> str:
    return json.dumps({"n": number, "text": '", "answer": {}}'})


def held(journal: Journal) -> dict[str, str]:
    return {key: bytes(line).decode() for key, line in journal.entries.items()}


def test_an_answer_is_read_as_it_was_written_and_each_line_is_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    answers = {key: answer(number) for number, key in enumerate(KEYS)}
    journal.add(dict(list(answers.items())[:3]))
    for key in KEYS[3:]:
        journal.add({key: answers[key]})
    assert held(journal) == answers
    journal.close(done=False)
    again = Journal(tmp_path / "journal")
    assert held(again) == answers
    lines = [json.loads(line) for line in again.path.read_text().splitlines()]
    assert [line["answer"]["n"] for line in lines] == list(range(20))
    again.close(done=True)
    assert not again.path.exists()


@pytest.mark.parametrize("left", [2, 20, 80])
def test_a_torn_line_does_not_count_and_spoils_none_after_it(tmp_path: Path, left: int) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"a": answer(1), "b": answer(1)})
    journal.close(done=False)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-left])
    torn = Journal(journal.path)
    assert list(torn.entries) == ["a"]
    torn.add({"c": answer(3)})
    torn.close(done=False)
    last = Journal(journal.path)
    assert list(last.entries) == ["a", "c"]
    last.close(done=True)


def test_a_damaged_line_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"a": answer(1)})
    journal.close(done=False)
    journal.path.write_bytes(journal.path.read_bytes().replace(b'{"n": 1', b'{"n": 7'))
    damaged = Journal(journal.path)
    assert damaged.entries == {}
    damaged.close(done=False)
    journal.path.write_bytes(b'{"point": "a", "crc32": %s, "answer": 1}\n' % (b"9" * 5000))
    assert Journal(journal.path).entries == {}


def test_other_code_takes_no_answer_for_its_own_and_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"a": answer(1)})
    journal.close(done=False)
    with monkeypatch.context() as context:
        context.setattr(journals, "code_digest", lambda: "0123456789ab")
        other = Journal(journal.path)
        assert (other.entries, other.is_new) == ({}, False)
        other.add({"a": answer(2)})
        other.close(done=False)
    assert held(Journal(journal.path)) == {"a": answer(1)}


@pytest.mark.parametrize("content", [b'{"rows": []}\n', b"a person's notes", b'[{"point": "a"}]'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(InputError, match="mine: holds something else than answers"), open_journal(path):
        pass
    assert path.read_bytes() == content


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    with open_journal(None, tmp_path / "out.jsonl") as journal:
        assert journal is not None
        with pytest.raises(InputError, match=f"out.jsonl{ENDING}: another process is writing it"):
            Journal(journal.path)
    Journal(journal.path).close(done=True)


def test_one_that_a_user_names_stays_and_one_beside_a_file_goes_when_all_is_done(tmp_path: Path) -> None:
    for cache, beside in ((tmp_path / "cache", tmp_path / "out"), (None, tmp_path / "out")):
        with open_journal(cache, beside) as journal:
            assert journal is not None
            journal.add({"a": answer(1)})
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_there_is_none_beside_what_is_no_file() -> None:
    for path in (None, "-", os.devnull, "/dev/stdout"):
        with open_journal(None, path) as journal:
            assert journal is None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_stands_in_a_journals_place_is_not_followed(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / f"out.json{ENDING}", tmp_path / "victim"
    victim.write_text("somebody's\n")
    {"link": lambda: path.symlink_to(victim), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(InputError, match="cannot be written"), open_journal(None, tmp_path / "out.json"):
        pass
    assert victim.read_text() == "somebody's\n"
