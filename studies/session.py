"""Results that all processes of one test session share: a fit is made once, by whichever worker asks first."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from ddpsim.common.files import write_whole

FOLDER = "STUDIES_SESSION"
"""The variable that names the session's folder; without it each process keeps its own results."""
Given = ParamSpec("Given")
Made = TypeVar("Made")


def once_a_session(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Call `function` once for each of its arguments, by their content, in all processes that share a folder.

    Arguments and results must be such that they can be pickled. A process that asks for what another is making waits
    for it.
    """

    @functools.cache
    @functools.wraps(function)
    def kept(*given: Given.args, **named: Given.kwargs) -> Made:
        if (folder := os.environ.get(FOLDER)) is None:
            return function(*given, **named)
        asked = function.__module__, function.__qualname__, given, sorted(named.items())
        path = Path(folder) / hashlib.sha256(pickle.dumps(asked)).hexdigest()
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                write_whole(path, pickle.dumps(function(*given, **named)))
        made: Made = pickle.loads(path.read_bytes())
        return made

    return cast("Callable[Given, Made]", kept)
