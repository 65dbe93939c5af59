"""Standard output and error that cannot be written: a full one is one message, one that nobody reads is none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from ddpsim.common.errors import InputError

_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that move a terminal's cursor, colour it or turn text round: as Python has them."""


@contextlib.contextmanager
def guard_streams() -> Iterator[None]:
    """Guard both streams within the block, and flush standard output at its end.

    A reader that has gone away is no error: the rest is dropped. What goes wrong on standard error can be told nowhere,
    and is dropped too.

    Raises:
        InputError: where standard output cannot be written, as on a full disk, or is closed.
    """
    output, error = _Guarded(sys.stdout, _refuse), _Guarded(sys.stderr, lambda reason: None)
    with contextlib.redirect_stdout(cast(TextIO, output)), contextlib.redirect_stderr(cast(TextIO, error)):
        yield
        output.flush()


class _Guarded:
    """A stream whose failure goes to `failed` with its reason, at every use; everything else is the stream's own."""

    def __init__(self, stream: TextIO | None, failed: Callable[[str], None]) -> None:
        self._stream, self._failed = stream, failed
        self._reason: str | None = None

    def write(self, text: str) -> int:
        """Write `text`, with control characters shown instead of sent: names in it come from anybody's files."""
        return self.draw(text.translate(_CONTROLS))

    def draw(self, text: str) -> int:
        """Write `text` as it is, for a line that a program draws on a terminal itself."""
        if self._stream is None:
            self._reason = "it is closed"
        self._attempt(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(lambda stream: stream.flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[TextIO], object]) -> None:
        if self._stream is not None and self._reason is None:
            try:
                act(self._stream)
            except BrokenPipeError:
                _drop_the_rest(self._stream)
            except OSError as error:
                _drop_the_rest(self._stream)
                self._reason = error.strerror or str(error)
        # Said again where it was said before: a library may have swallowed it.
        if self._reason is not None:
            self._failed(self._reason)


def _drop_the_rest(stream: TextIO) -> None:
    """Let what is still buffered, and all that follows, go nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _refuse(reason: str) -> None:
    remedy = "send it to a file or program that takes it"
    raise InputError(f"cannot be written: {reason}", place="standard output", remedy=remedy)
