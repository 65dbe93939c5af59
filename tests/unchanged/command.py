"""A command's answer: exit status, document or text, and what it says on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

PROGRESS = re.compile(r"^[^:\n]+: [\d,]+ of [\d,]+(, .* left)?\n", re.MULTILINE)
"""How far a command is and how long it will take, which the clock says."""


def answer(arguments: Sequence[str], program: str = "ddpsim") -> dict[str, Any]:
    """Return what `ddpsim ARGUMENTS`, or `python -m ddpexec ARGUMENTS`, prints, and how it ends."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _run(program)(list(arguments))
    found: dict[str, Any] = {"exit": code, "said": PROGRESS.sub("", err.getvalue())}
    if "--json" in arguments and not code:
        found["document"] = json.loads(out.getvalue())
    else:
        found["text"] = out.getvalue()
    return found


def _run(program: str) -> Callable[[list[str]], Any]:
    if program == "ddpsim":
        from ddpsim.cli.app import run

        return run
    from ddpexec.__main__ import run as run_executor

    return run_executor
