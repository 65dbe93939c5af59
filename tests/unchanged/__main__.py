"""Record documents, and hold today's against them.

python -m tests.unchanged record FILE       # before the change
python -m tests.unchanged compare FILE      # after it: what differs, exit 1 if anything does

With `--simulations` the traces of `jobs.py` are recorded in place of documents: no bands, so that they take a few
minutes. `--tolerance 1e-6` allows numbers to differ by so much, relative; in a trace, to the end of its run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ddpsim.cli.progress import Progress
from tests.unchanged.cases import CALIBRATION, MACHINE, NODES, TABLE, cases
from tests.unchanged.jobs import jobs

ROUNDING = 1e-12
"""Relative: what another order of a sum may change."""


def document(line: str) -> Any:
    """Return what a command prints under `--json`, or the message with which it refuses."""
    from ddpsim.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*line.split(), "--json"])
    if code:
        return {"refused": err.getvalue()}
    return json.loads(out.getvalue())


def differences(
    before: Any, after: Any, place: str = "", *, tolerance: float = ROUNDING, scale: float = 0.0
) -> Iterator[str]:
    """Yield where `after` misses a key of `before` or has another value; provenance apart, new keys allowed.

    Args:
        tolerance: relative difference of numbers that is none.
        scale: what numbers are small beside: they may differ by `tolerance` of it, too.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - {"provenance"}:
            yield from differences(before[key], after.get(key), f"{place}.{key}", tolerance=tolerance, scale=scale)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}[{index}]", tolerance=tolerance, scale=scale)
    elif isinstance(before, float) and isinstance(after, (int, float)):
        if not math.isclose(before, after, rel_tol=tolerance, abs_tol=max(1e-18, tolerance * scale)):
            yield f"{place}: {before!r} became {after!r}"
    elif before != after:
        yield f"{place}: {str(before)[:80]} became {str(after)[:80]}"


def recorded_cases(*, simulations: bool) -> list[tuple[str, Callable[[], Any]]]:
    """Return by name what is recorded: documents of commands, or the traces of jobs."""
    if simulations:
        return [(str(job), job.run) for job in jobs()]
    Path(CALIBRATION).parent.mkdir(exist_ok=True)
    calibrate = f"calibrate {TABLE} --topology {MACHINE} --nodes {NODES} -o {CALIBRATION}"
    return [(line, partial(document, line)) for line in (calibrate, *cases())]


def scale_of(found: Any) -> float:
    """Return the longest end of a recorded trace, in seconds; 0 of a document."""
    if not isinstance(found, dict) or "whole" not in found:
        return 0.0
    return max((each["end_s"] for each in found["whole"]["iterations"]), default=0.0)


def main(arguments: list[str]) -> int:
    """Record, or compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__)
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--simulations", action="store_true")
    parser.add_argument("--tolerance", type=float, default=ROUNDING)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    asked = parser.parse_args(arguments)
    found = [case for case in recorded_cases(simulations=asked.simulations) if asked.only in case[0]]
    anew = asked.verb == "record" and not (asked.only and asked.file.exists())
    kept = {} if anew else json.loads(asked.file.read_text())
    changed, progress = 0, Progress(what := "traces" if asked.simulations else "documents")
    for number, (name, run) in enumerate(found, 1):
        progress(number - 1, len(found))
        made = json.loads(json.dumps(run()))
        if asked.verb == "record":
            kept[name] = made
            continue
        scale = scale_of(kept[name])
        if lines := list(differences(kept[name], made, tolerance=asked.tolerance, scale=scale)):
            changed += 1
            print(f"{name}\n    " + "\n    ".join(lines[:5]))
    if asked.verb == "record":
        asked.file.write_text(json.dumps(kept))
    progress(len(found), len(found))
    print(f"{len(found)} {what}" + ("" if asked.verb == "record" else f", {changed} changed"))
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
