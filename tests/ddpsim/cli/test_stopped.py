"""A command that is stopped goes on from there: what it has done is not done again, and its output is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.common.version import __version__
from ddpsim.prediction import answers
from tests import forked

RUN = """
import os, signal, sys
import ddpsim.common.workers.journal as journal
stop_after, number = int(sys.argv[1]), int(sys.argv[2])
add, added = journal.Journal.add, []
def adding(*arguments):
    add(*arguments)
    added.append(1)
    if len(added) == stop_after:
        os.kill(os.getpid(), number)
journal.Journal.add = adding
from ddpsim.cli import main
try:
    main(sys.argv[3:])
finally:
    print(len(added), "were computed", file=sys.stderr)
"""
"""Runs a command which gets a signal once so many points are in its journal, and says how many it computed."""

PRICED = ("--price", "dgx-1v=9EUR/h", "--price", "p3.16xlarge=20EUR/h@2026-11-01", "--samples-per-epoch", "1e6")
MACHINES = ("--topology", "dgx-1v", "--topology", "p3.16xlarge")
COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": ("sweep", "--topology", "dgx-1v", "--nodes", "1,2", "--bucket-cap-mb", "1,5"),
    "plan": ("plan", *MACHINES, "--nodes", "1,2"),
    "compare": ("compare", *MACHINES, "--nodes", "1,2", *PRICED),
    "advice": ("compare", *MACHINES, "--nodes", "2", "--advice", "--link-rate", "25,100Gb/s"),
}
NEVER = 0


def ran(
    words: tuple[object, ...], stop_after: int = NEVER, number: int = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Run a command in a fork; where it has workers, in an interpreter of its own, as a fork may have none."""
    given = [sys.executable, "-c", RUN, str(stop_after), str(int(number)), *map(str, words)]
    if 2 in words:
        return subprocess.run(given, capture_output=True, text=True, check=False)
    return forked.command(given, Path.cwd(), {})


def computed(ended: subprocess.CompletedProcess[str]) -> int:
    [line] = [line for line in ended.stderr.splitlines() if line.endswith("were computed")]
    return int(line.split()[0])


@pytest.mark.needs("wait")
@pytest.mark.parametrize(("command", "workers"), [*((command, 1) for command in COMMANDS), ("compare", 2)])
def test_what_was_stopped_goes_on_and_ends_with_the_same_bytes(
    tiny: Path, tmp_path: Path, command: str, workers: int
) -> None:
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    words = (*COMMANDS[command], "--workload", tiny, "--workers", workers, "-o", out, "--report", page, "--json")
    whole = ran(words)
    assert whole.returncode == 0, whole.stderr
    expected = out.read_bytes(), page.read_bytes(), whole.stdout
    everything = computed(whole)
    out.unlink()

    stopped = ran(words, everything // 2)
    assert stopped.returncode == 128 + signal.SIGINT
    assert "error: stopped by SIGINT" in stopped.stderr
    assert "; the same command goes on from there" in stopped.stderr
    kept = computed(stopped)
    # Two workers may be through with all points in the moment that they are given.
    assert everything // 2 <= kept <= everything - (workers == 1)

    again = ran(words)
    assert (out.read_bytes(), page.read_bytes(), again.stdout) == expected
    assert computed(again) == everything - kept
    assert f"are in {out}.partial already" in again.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.json", "page.html", "tiny.json"]


def test_rows_that_are_done_are_in_the_file_that_was_asked_for(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    words = ("compare", "--workload", tiny, "--topology", "dgx-1v", "--nodes", "1,2,3,4", "--workers", 1, "-o", out)
    stopped = ran(words, 2, signal.SIGTERM)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert [json.loads(line)["nodes"] for line in out.read_text().splitlines()] == [1, 2]
    said = f"note: 2 of 4 predictions were done; {out} has them; the same command goes on from there"
    assert said in stopped.stderr


def test_a_plan_that_is_stopped_writes_no_plan_and_says_where_its_rows_are(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    words = ("plan", "--workload", tiny, *MACHINES, "--workers", 1, "-o", out)
    stopped = ran(words, 1)
    assert f"note: 1 of 2 plans were done; {out}.partial has them; the same command goes on" in stopped.stderr
    assert not out.exists()


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_without_o_what_is_done_lies_beside_the_report(tiny: Path, tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    words = (*COMMANDS[command], "--workload", tiny, "--workers", 1, "--report", page)
    stopped = ran(words, 2)
    assert f"{page}.partial has them" in stopped.stderr
    assert computed(ran(words)) == 2


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_a_cache_is_not_written_over(tiny: Path, tmp_path: Path, option: str, ddpsim: Callable[..., Any]) -> None:
    kept, link = tmp_path / "kept", tmp_path / "link"
    link.symlink_to(kept)
    told = ddpsim(*COMMANDS["compare"], "--workload", tiny, "--workers", 1, "--cache", kept, option, link)
    assert (told.code, told.out) == (2, "")
    assert f"--cache: {option} and --cache both write {kept}; name two files" in told.err
    assert not kept.exists()


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_what_other_options_or_another_version_made_is_not_taken(
    tiny: Path, tmp_path: Path, command: str, ddpsim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    words = (*COMMANDS[command], "--workload", tiny, "--workers", 1, "-o", out)
    ran(words, 2)
    partial = Path(f"{out}.partial")
    kept = partial.read_bytes()
    other = ddpsim(*words, "--optimizer", "adamw", "--json")
    others = "what it holds is of other questions, parts of these, or another version"
    assert other.err.count(f"are in {partial} already: {others}") == 1
    assert "note: 0 of 4 " in other.err

    partial.write_bytes(kept)
    monkeypatch.setattr("ddpsim.simulation.job.__version__", f"{__version__}.post1")
    newer = ddpsim(*words, "--json")
    assert "note: 0 of 4 " in newer.err
    monkeypatch.undo()

    partial.write_bytes(kept)
    same = ddpsim(*words, "--json")
    assert f"note: 2 of 4 {'plans' if command == 'plan' else 'predictions'} are in {partial} already\n" in same.err
    assert same.out == newer.out != other.out


def test_prices_and_goals_are_asked_anew_of_rows_that_are_there(
    tiny: Path, tmp_path: Path, ddpsim: Callable[..., Any]
) -> None:
    out = tmp_path / "rows.jsonl"
    words = (*COMMANDS["compare"], "--workload", tiny, "-o", out)
    missed = ddpsim(*words, "--samples-per-second", "1e12")
    assert missed.code == 2
    assert missed.err.count("error: --samples-per-second: nothing compared reaches 1e+12 samples/s") == 1
    ddpsim(*words[:-2], "--samples-per-second", "1e12").refused("nothing compared reaches 1e+12 samples/s")
    assert len(out.read_text().splitlines()) == 4
    met = ddpsim(*words, "--samples-per-second", "1")
    assert "note: 4 of 4 predictions are in" in met.err
    assert met.code == 0


def test_a_lost_worker_leaves_the_other_rows_and_the_rest_is_computed_later(
    tiny: Path, tmp_path: Path, ddpsim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.jsonl"
    words = ("compare", "--workload", tiny, "--topology", "dgx-1v", "--nodes", "1,2,3,4", "--workers", 2, "-o", out)
    predict = answers.predict

    def deadly(job: Any, **given: Any) -> Any:
        if job.nodes == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return predict(job, **given)

    monkeypatch.setattr(answers, "predict", deadly)
    lost = ddpsim(*words)
    assert lost.code == 2
    assert f"error: {tiny} on dgx-1v, 3 nodes: was lost with its worker twice" in lost.err
    assert "; the same command goes on from there" in lost.err
    there = [json.loads(line)["nodes"] for line in out.read_text().splitlines()]
    assert there in ([1, 2], [1, 2, 4])
    monkeypatch.undo()
    again = ddpsim(*words)
    assert f"note: {len(there)} of 4 predictions are in {out}.partial already" in again.err
    assert [json.loads(line)["nodes"] for line in out.read_text().splitlines()] == [1, 2, 3, 4]
