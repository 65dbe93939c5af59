"""Users' own code, named by `package.module:name`: schemes, predictors, training steps."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


def import_object(path: str) -> Any:
    """Return the object `package.module:name`, of an installed module or one in the working folder.

    Raises what the module raises on import; ImportError or AttributeError where there is no such thing, and
    ImportError where the module calls `sys.exit`, which would end this process without a word.
    """
    module, _, name = path.partition(":")
    _look_here()
    with convert_exit(ImportError):
        return getattr(importlib.import_module(module), name)


@contextmanager
def convert_exit(error: type[Exception]) -> Iterator[None]:
    """Turn the `SystemExit` of a user's code within the block into `error`; a signal's own kind passes."""
    try:
        yield
    except SystemExit as ended:
        if type(ended) is not SystemExit:
            raise
        what = f"it ends the process: SystemExit({ended.code!r})"
        raise error(what).with_traceback(ended.__traceback__) from ended


def can_be_imported(module: str) -> bool:
    """Return whether there is a module of this name, which has no dot, in the working folder or installed."""
    _look_here()
    return find_spec(module) is not None


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
