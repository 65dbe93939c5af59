"""A training step of the user's own: `package.module:function`, which returns the module and a callable."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

import ddpsim
from ddpsim.common.errors import InputError
from ddpsim.common.options.own import convert_exit, import_object

Factory = Callable[[], object]
"""Called without arguments, returns `(module, step)`."""

_LONGEST = 300
"""Characters of another library's message that an error repeats; chosen by hand."""
_NOT_THE_USERS = tuple(
    f"{path}{os.sep}" for path in (Path(torch.__path__[0]), Path(ddpsim.__path__[0]), Path(__file__).parents[1])
)


@dataclass(frozen=True, slots=True)
class OwnStep:
    """What a user's function returned.

    Attributes:
        path: `package.module:function`.
        module: that is trained.
        step: does one training step: one forward of the module, one backward, the optimizer.
    """

    path: str
    module: nn.Module
    step: Callable[[], object]

    @property
    def name(self) -> str:
        """What a workload of it is called."""
        return self.path.replace(":", ".")

    def train(self) -> None:
        """Do one training step.

        Raises:
            InputError: the step raised; it says where.
        """
        with name_errors(self.path):
            self.step()


def load_own_step(path: str) -> OwnStep:
    """Return what the function at `path` returns.

    Raises:
        InputError: it cannot be imported, raises, or returns something else than a module and a callable.
    """
    return call_builder(factory(path), path)


def factory(path: str) -> Factory:
    """Return the function at `package.module:function`, found from the working folder too.

    Raises:
        InputError: no such module or function, or no function.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(f"{path!r} names no function", place="--step", remedy="write package.module:function")
    try:
        with name_errors(path):
            function = import_object(path)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{path!r} cannot be imported: {error}", place="--step", remedy=_remedy(path, error)
        ) from error
    if not callable(function):
        raise InputError(f"{path!r} is a {type(function).__name__}", place="--step", remedy="name a function")
    return function  # type: ignore[no-any-return]


def _remedy(path: str, error: ImportError | AttributeError) -> str:
    """Return what to do where `path` cannot be imported: mostly it names a file, or a function that is not there."""
    module, _, name = path.partition(":")
    if module.endswith(".py"):
        return f"write {module.removesuffix('.py').removeprefix('./').replace('/', '.')}:{name}"
    culprit = getattr(error, "obj", None)
    names = (
        [each for each in dir(culprit) if callable(getattr(culprit, each))] if isinstance(culprit, ModuleType) else []
    )
    if near := get_close_matches(name, names, n=1, cutoff=0.6):
        return f"did you mean {module}:{near[0]}?"
    return "run from the folder its package is in, or install it"


def call_builder(function: Factory, path: str) -> OwnStep:
    """Return what `function`, found at `path`, returns.

    Raises:
        InputError: it raises, or returns something else than a module and a callable.
    """
    with name_errors(path):
        built = function()
    module, step = built if isinstance(built, tuple) and len(built) == 2 else (None, None)
    if not isinstance(module, nn.Module) or not callable(step):
        remedy = "return (module, step), an nn.Module and a callable without arguments"
        raise InputError(f"{path} returned {type(built).__name__}", place="--step", remedy=remedy)
    return OwnStep(path, module, step)


_NO_GPU = "not compiled with CUDA", "Found no NVIDIA driver", "No CUDA GPUs are available"
"""What torch says of a tensor that is to lie on a GPU where it has none."""


@contextmanager
def name_errors(path: str) -> Iterator[None]:
    """Turn what the user's code raises into an `InputError` that says what, and at which of its lines.

    Failures to import are the importer's to explain.
    """
    try:
        with convert_exit(RuntimeError):
            yield
    except (InputError, ImportError, AttributeError) as error:
        if isinstance(error, InputError) or _line(error) is None:
            raise
        raise _make_error(path, error) from error
    except Exception as error:
        raise _make_error(path, error) from error


def _make_error(path: str, error: Exception) -> InputError:
    what = " ".join(str(error).split()) or "no message"
    what = what if len(what) <= _LONGEST else f"{what[:_LONGEST]}..."
    line = _line(error)
    where = f"--step {path}" if line is None else f"--step {path}: {line}"
    remedy = "mend the step, so that it runs by itself"
    if any(sign in what for sign in _NO_GPU):
        remedy = "leave `.cuda()` out, or take the device of the module's parameters: an estimate needs no GPU"
    return InputError(f"{type(error).__name__}: {what}", place=where, remedy=remedy)


def _line(error: BaseException) -> str | None:
    """Return `file:line` of the innermost frame that is neither torch's, nor ours, nor the importer's."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = (f for f in frames if not f.filename.startswith((*_NOT_THE_USERS, "<frozen")) and f.filename != "<string>")
    frame = next((f for f in own if f.filename != importlib.__file__ and "site-packages" not in f.filename), None)
    return None if frame is None else f"{Path(frame.filename).name}:{frame.lineno}"
