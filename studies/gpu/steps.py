"""What a step is, its result, and how a list of them is gone through: one after the other, resumed, never given up."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddpsim.common.files import json_text, write_whole
from studies.gpu.processes import carry_out

ROOT = Path(__file__).parents[2]
OK, FAILED, SKIPPED = "ok", "failed", "skipped"
EVERY_S = 30.0
"""Between lines of progress where standard error is no terminal."""

_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception)\b.*|error: .*)")
_NOT_THE_CAUSE = ("ChildFailedError", "SignalException", "error_file:")


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: of the step, its folder and what `--only` takes.
        arguments: after the interpreter's name.
        limit_s: after which it is ended and has failed.
        environment: variables beside those there are.
        after: steps without whose success this one is left out, where they have run.
        skip: why it cannot run here; empty where it can.
        may_fail: a failure is a finding too, and no reason for a bad exit code.
        unfinished: text in the output of a step that ended well and has more to do.
        gives: what to show of its output.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    skip: str = ""
    may_fail: bool = False
    unfinished: str = ""
    gives: Callable[[str], str] = lambda output: last_line(output)

    @property
    def shown(self) -> str:
        """The command as one would type it."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*variables, "python", *map(shlex.quote, self.arguments)])


@dataclass(frozen=True)
class Result:
    """How a step ended: `status` and, in one line, what it gave or why it failed; `shown` is the command."""

    name: str
    status: str
    said: str
    seconds: float = 0.0
    shown: str = ""


class Steps:
    """Steps that keep what they leave under one folder.

    Args:
        out: the folder.
        say: takes lines of progress.
    """

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        self.out, self._say = out, say

    def folder(self, name: str) -> Path:
        """Return where a step's output lies."""
        return self.out / "steps" / name

    def output(self, name: str) -> str:
        """Return what a step printed; empty where it has not run."""
        path = self.folder(name) / "stdout.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def result(self, name: str) -> Result | None:
        """Return how a step ended when it last ran; None where it has not."""
        path = self.folder(name) / "result.json"
        return Result(**json.loads(path.read_text())) if path.exists() else None

    def run(self, steps: Sequence[Step]) -> list[Result]:
        """Run what has not succeeded yet; return how each ended."""
        return [self.run_one(step, f"[{number}/{len(steps)}]") for number, step in enumerate(steps, 1)]

    def run_one(self, step: Step, label: str, *, again: bool = False) -> Result:
        """Run one step, unless it has succeeded and is not wanted `again`, or cannot run."""
        done = self.result(step.name)
        if not again and done is not None and done.status == OK and done.shown == step.shown:
            self._say(f"{label} {step.name}: done before")
            return done
        if why := self.why_not(step):
            self._say(f"{label} {step.name}: skipped: {why}")
            return Result(step.name, SKIPPED, why)
        self._say(f"{label} {step.name}: $ {step.shown}")
        result = self._carried_out(step)
        write_whole(self.folder(step.name) / "result.json", json_text(asdict(result)))
        self._say(f"{label} {step.name}: {result.status} after {result.seconds:.0f} s: {result.said}")
        return result

    def why_not(self, step: Step) -> str:
        """Return why a step cannot run here, or need not; empty where it can."""
        ended = {name: self.result(name) for name in step.after}
        failed = [name for name, result in ended.items() if result is not None and result.status != OK]
        return step.skip or (f"{failed[0]} failed" if failed else "")

    def _carried_out(self, step: Step) -> Result:
        folder = self.folder(step.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        begin_s = time.monotonic()
        command = [sys.executable, *step.arguments]
        code = carry_out(command, _environment(step), ROOT, folder, step.limit_s, _Waiting(step, self._say))
        seconds = time.monotonic() - begin_s
        output, errors = ((folder / name).read_text(errors="replace") for name in ("stdout.txt", "stderr.txt"))
        if code is None:
            said = f"still running after {step.limit_s:.0f} s"
        elif code:
            said = cause(output, errors) or f"exit code {code}"
        elif step.unfinished and step.unfinished in output:
            said, code = last_line(output), 1
        else:
            said = _given(step, output)
        return Result(step.name, OK if code == 0 else FAILED, said, round(seconds, 1), step.shown)


def _environment(step: Step) -> dict[str, str]:
    """Return the variables of a step: one thread a rank where nothing else is set, and this copy of the packages."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": path, **step.environment}


def _given(step: Step, output: str) -> str:
    try:
        return step.gives(output)
    except (ValueError, LookupError, TypeError):
        return last_line(output)


class _Waiting:
    """Tells how long a step has been running: on one line of a terminal each second, elsewhere now and then."""

    def __init__(self, step: Step, say: Callable[[str], None]) -> None:
        self._name, self._limit_s, self._say = step.name, step.limit_s, say
        self._next_s = 1.0 if sys.stderr.isatty() else EVERY_S

    def __call__(self, seconds: float) -> None:
        if seconds < self._next_s:
            return
        text = f"{self._name}: {seconds:.0f} s, at most {self._limit_s:.0f} s"
        if sys.stderr.isatty():
            print(f"\r\033[K{text}\r", end="", file=sys.stderr, flush=True)
        else:
            self._say(text)
        self._next_s = seconds + (1.0 if sys.stderr.isatty() else EVERY_S)


def document(output: str) -> dict[str, Any]:
    """Return the JSON document in an output, in which NCCL may have had its say before and after.

    Raises:
        ValueError: there is none.
    """
    begin = re.search(r"^\{", output, re.MULTILINE)
    if begin is None:
        raise ValueError("no JSON document")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(output, begin.start())[0]
    return found


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def cause(output: str, errors: str) -> str:
    """Return the line that says best why a command failed: NCCL's own, an exception's, else the last one."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last_errors = [after for line, after in itertools.pairwise(lines) if line.endswith("Last error:")]
    warnings = [
        line.partition("NCCL WARN")[2].strip() for line in (*lines, *output.splitlines()) if "NCCL WARN" in line
    ]
    matches = [match for line in lines if (match := _ERROR.match(line))]
    exceptions = [match[1] for match in matches if not any(word in match[1] for word in _NOT_THE_CAUSE)]
    told = last_errors or warnings or exceptions
    return told[-1] if told else last_line(output) or last_line(errors)
