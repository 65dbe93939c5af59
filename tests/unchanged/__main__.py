"""Record documents, and hold today's against them.

python -m tests.unchanged record FILE       # before the change
python -m tests.unchanged compare FILE      # after it: what differs, exit 1 if anything does
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unchanged.cases import CALIBRATION, MACHINE, NODES, TABLE, cases

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


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield where `after` misses a key of `before` or has another value; provenance apart, new keys allowed."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - {"provenance"}:
            yield from differences(before[key], after.get(key), f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif isinstance(before, float) and isinstance(after, (int, float)):
        if not math.isclose(before, after, rel_tol=ROUNDING, abs_tol=1e-18):
            yield f"{place}: {before!r} became {after!r}"
    elif before != after:
        yield f"{place}: {str(before)[:80]} became {str(after)[:80]}"


def main(verb: str, file: Path) -> int:
    """Record, or compare; return the exit code."""
    Path(CALIBRATION).parent.mkdir(exist_ok=True)
    calibrated = document(f"calibrate {TABLE} --topology {MACHINE} --nodes {NODES} -o {CALIBRATION}")
    lines = list(cases())
    kept = {} if verb == "record" else json.loads(file.read_text())
    kept.setdefault("calibrate", calibrated)
    changed = sum(1 for found in differences(kept["calibrate"], calibrated) if print(f"calibrate{found}") is None)
    for number, line in enumerate(lines, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(lines)}", end="", file=sys.stderr)
        if verb == "record":
            kept[line] = document(line)
        elif found := list(differences(kept[line], document(line))):
            changed += 1
            print(f"\n{line}\n    " + "\n    ".join(found[:5]))
    if verb == "record":
        file.write_text(json.dumps(kept))
    print(f"\n{len(lines)} documents" + ("" if verb == "record" else f", {changed} changed"))
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
