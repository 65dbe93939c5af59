"""A scheme of one's own: a function from a setup to a schedule, by `package.module:function`."""

from __future__ import annotations

import os
import traceback
from functools import partial

from ddpsim.errors import InputError
from ddpsim.options.own import can_be_imported, exits_as, imported
from ddpsim.schedules.named import Make, Scheme
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs


def is_own(text: str) -> bool:
    """Return whether `text` names a scheme of one's own: `mine:lazy`, `package.module:lazy`; `mien:4MiB` is a typo."""
    module, colon, _ = text.partition(":")
    package, *inner = module.split(".")
    if not all(name.isidentifier() for name in (package, *inner)):
        return False
    return bool(inner) or (bool(colon) and can_be_imported(module))


def own_scheme(path: str) -> Scheme:
    """Return the scheme that the function at `path` makes.

    Raises:
        InputError: nothing that can be imported, or no function.
    """
    place = f"scheme {path!r}"
    try:
        found = imported(path)
    except Exception as error:  # whatever a module of somebody else's raises when it is imported
        what = f"cannot be imported: {type(error).__name__}: {error}"
        raise InputError(what, place=place, remedy="name package.module:function") from error
    if not callable(found):
        raise InputError("is no function", place=place, remedy="name a function from a setup to a schedule")
    return Scheme(path, partial(_call_own, found, place))


def _call_own(function: Make, place: str, setup: SchemeInputs) -> Schedule:
    """Return what a scheme of one's own makes of `setup`; what it raises says at which of its lines."""
    try:
        with exits_as(RuntimeError):
            return function(setup)
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        its_file = getattr(getattr(function, "__code__", None), "co_filename", None)
        last = ([frame for frame in frames if frame.filename == its_file] or frames)[-1]
        what = f"raised {type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {error}"
        raise InputError(what, place=place, remedy="mend the scheme") from error
