"""Pickles of numbers, texts and containers alone, of torch's flight recorder: nothing in them is run, or takes days."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, NoReturn

from ddpsim.errors import TraceError

_MOST_IN_TUPLE = 10_000
"""Values of a tuple and the tuples in it at most: the recorder's are pairs of texts."""


class _Plain(pickle._Unpickler):
    """It makes numbers, texts and containers, and nothing that has a name: no class, no function.

    In Python, so that what is hashed is bounded before it is: tuples that hold one another twice are hashed for days.
    """

    dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._held: dict[int, tuple[object, int]] = {}

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain container")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a persistent object is no plain container")

    def make_tuple(self, opcode: int) -> None:
        """Make a tuple as Python does, and keep it with how much it holds, so that no other gets its address."""
        make: Any = pickle._Unpickler.dispatch[opcode]
        make(self)
        made = self.stack[-1]  # type: ignore[attr-defined]
        self._held[id(made)] = (made, self._count(made))

    def _count(self, made: Iterable[object]) -> int:
        """Return how many values a tuple holds, with those in its tuples."""
        count = 1 + sum(self._held[id(each)][1] if isinstance(each, tuple) else 1 for each in made)
        if count > _MOST_IN_TUPLE:
            raise pickle.UnpicklingError(f"a tuple of more than {_MOST_IN_TUPLE:,} values")
        return count


for _code in (pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _Plain.dispatch[_code[0]] = partial(_Plain.make_tuple, opcode=_code[0])


def read_plain(raw: bytes, place: str) -> object:
    """Return what a pickle of plain containers holds.

    Raises:
        TraceError: anything else in it, or no whole pickle.
    """
    try:
        return _Plain(io.BytesIO(raw)).load()
    except Exception as cause:  # a damaged pickle raises whatever its opcodes come to
        what = f"not a pickle of plain containers: {cause}"
        raise TraceError(what, place=place, remedy="give what the flight recorder wrote, whole") from cause
