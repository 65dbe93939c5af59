"""Measure on one GPU whatever one GPU can tell, step by step, and write a report.

    python -m studies.gpu.one_gpu --out DIR [--device cuda|cpu] [--only NAME ...] [--quick]

Called again it goes on where it was left, and tries again what has failed. With `--device cpu` the counterparts of all
steps run on the CPU.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.files import json_text, write_whole
from ddpsim.common.stopping import Stopped, stop_on_signals
from studies.gpu.catalogue import Scope, machine_step, steps
from studies.gpu.report import report
from studies.gpu.steps import FAILED, OK, ROOT, SKIPPED, Result, Step, Steps, document


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 0, 1 where one failed that should not, 2 where none can run."""
    given = parsed(arguments)
    out = given.out if Path.cwd() == ROOT else given.out.resolve()  # commands are run, and shown, from there
    kept = Steps(out, say)
    try:
        scope = Scope(out, machine(kept, given.device), given.quick)
        listed = steps(scope)
        chosen = selected(listed, given.only)
    except InputError as error:
        say(f"error: {error}")
        return 2
    code = 0
    try:
        with stop_on_signals():
            kept.run(chosen)
    except Stopped as stopped:
        say(f"stopped by {stopped}; the same command goes on from there")
        code = 128 + stopped.number
    ended = [ending(step, kept, step in chosen) for step in listed]
    say("writing the report ...")
    write_whole(out / "report.md", report(scope, ended, kept))
    say(f"written to {out / 'report.md'}")
    failed = {result.name for result in ended if result.status == FAILED}
    bad = [step.name for step in chosen if step.name in failed and not step.may_fail]
    if bad:
        say(f"failed: {', '.join(bad)}")
    return code or int(bool(bad))


def machine(kept: Steps, device: str) -> dict[str, Any]:
    """Return what this machine is, and keep it beside the measurements.

    Raises:
        InputError: the device is not there, or the folder holds measurements of another.
    """
    step = machine_step(device)
    file = kept.out / "machine.json"
    result = kept.run_one(step, "[machine]", again=True)
    if result.status != OK:
        raise InputError(result.said.removeprefix("error: "), place=f"--device {device}")
    found = document(kept.output(step.name))
    before = json.loads(file.read_text()) if file.exists() else found
    if before["model"] != found["model"]:
        what = f"holds measurements of {before['model']}, this is {found['model']}"
        raise InputError(what, place=f"--out {kept.out}", remedy="give another folder")
    write_whole(file, json_text(found))
    return found


def selected(listed: Sequence[Step], patterns: Sequence[str] | None) -> list[Step]:
    """Return the steps that a pattern fits, all without patterns.

    Raises:
        UnknownNameError: a pattern that fits none.
    """
    for pattern in patterns or ():
        if not any(fnmatch.fnmatchcase(step.name, pattern) for step in listed):
            raise UnknownNameError.among("step", pattern, (step.name for step in listed), place="--only")
    return [s for s in listed if not patterns or any(fnmatch.fnmatchcase(s.name, p) for p in patterns)]


def ending(step: Step, kept: Steps, chosen: bool) -> Result:
    """Return how a step ended, now or before."""
    why = kept.why_not(step) or ("not run" if chosen else "not chosen by --only")
    return kept.result(step.name) or Result(step.name, SKIPPED, why)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="steps of these names, or that fit them (*, ?)")
    parser.add_argument("--quick", action="store_true", help="as little as shows that everything runs")
    return parser.parse_args(arguments)


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
