"""`ddpsim compare -o` that ends early keeps the rows that are done, in whole lines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

STOPPED = """
import os, signal, sys
import ddpsim.planning.compare as compare
row, done = compare._row, []
def stopping(*arguments):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGINT)
    done.append(row(*arguments))
    return done[-1]
compare._row = stopping
from ddpsim.cli import main
main(sys.argv[1:])
"""


def test_what_is_done_is_kept(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ["compare", "--workload", str(tiny), "--topology", "dgx-1v", "--nodes", "1,2,3,4"]
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED, *words, "--workers", "1", "-o", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 128 + signal.SIGINT
    assert [json.loads(line)["nodes"] for line in out.read_text().splitlines()] == [1, 2]
    assert f"note: 2 rows done; {out} has them" in ended.stderr
