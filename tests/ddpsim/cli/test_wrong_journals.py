"""Journals with right sums and wrong contents: their points are computed anew, and the result is what it would be."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ddpsim.common.workers.journal import Journal
from tests.ddpsim.cli.test_broken_files import WRONG, broken, places
from tests.ddpsim.cli.test_stopped import COMMANDS
from tests.profile import examples

CHANGES = examples(12)
LINE = re.compile(rb'(\{"point": "[0-9a-f]+", "crc32": )\d+, "answer": (.*)\}')


def damaged(line: bytes, random: Random) -> bytes:
    """Return a journal's line with one value of its answer changed or removed, and the sum of that."""
    start, body = LINE.fullmatch(line).groups()  # type: ignore[union-attr]
    whole = json.loads(body)
    found = places(whole)
    body = json.dumps(broken(whole, random.choice(found), random.choice(WRONG), remove=random.random() < 0.3)).encode()
    return start + b'%d, "answer": ' % zlib.crc32(body) + body + b"}"


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.needs("minutes")] * (each == "advice")) for each in COMMANDS]
)
def test_whatever_a_journal_holds_there_is_no_traceback(
    command: str, tiny: Path, tmp_path: Path, ddpsim: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, random = tmp_path / "out.jsonl", Random(command)
    words = (*COMMANDS[command], "--workload", tiny, "--workers", 1, "-o", out)
    with monkeypatch.context() as context:
        context.setattr(Journal, "close", lambda self, *, done: None)
        assert ddpsim(*words).code == 0
    lines = Path(f"{out}.partial").read_bytes().splitlines()
    for _ in range(CHANGES):
        Path(f"{out}.partial").write_bytes(b"\n".join(damaged(line, random) for line in lines) + b"\n")
        result = ddpsim(*words)
        assert result.code in (0, 2), result.err
        assert "Traceback" not in result.err
