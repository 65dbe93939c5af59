"""What people bring of their own and name by `package.module:name`: schemes, predictors, training steps."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import Any


def imported(path: str) -> Any:
    """Return what `package.module:name` names, found from the working folder too.

    Raises what the module raises where it is imported; ImportError or AttributeError where there is no such thing.
    """
    module, _, name = path.partition(":")
    _look_here()
    return getattr(importlib.import_module(module), name)


def can_be_imported(module: str) -> bool:
    """Return whether there is a module of this name, which has no dot, in the working folder or installed."""
    _look_here()
    return find_spec(module) is not None


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
