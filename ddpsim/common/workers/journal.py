"""The journal: answers by key in a file, one line of JSON each, so that an interrupted command goes on where it was.

The key of a line begins with a digest of the code that computed it: other code never reuses its answers. Each line has
a checksum of its answer; a line torn by a crash, or damaged, is skipped and computed again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ddpsim.common.errors import InputError
from ddpsim.common.files import BoundedFile, is_regular, open_regular
from ddpsim.common.shipped import FOLDERS

ENDING = ".partial"
"""Ending of a journal that is named after the file that is being made, in its folder."""

_MOST_BYTES = 1 << 30
"""Bytes of a journal that are read; chosen by hand, a hundred thousand predictions."""

_BEGINS = b'{"point": "'
_START = re.compile(rb'\{"point": "([0-9a-f]+)", "crc32": (\d{1,10}), "answer": ')
_CLOSING = ord("}")


class Journal:
    """Answers by key, read when it is opened and appended; a line that is torn or damaged does not count.

    Attributes:
        path: of the journal itself.
        entries: its answers by this code, each as JSON.
        is_new: whether nothing was in it, of this code or another.

    Raises:
        InputError: where it cannot be read or written, another process writes it, or it is no journal.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.entries, self._code = path, dict[str, memoryview](), code_digest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(path, os.O_RDWR | os.O_APPEND)
            self._lock()
            content = self._content()
        except OSError as error:
            raise self._make_write_error(error) from error
        if not content.startswith(_BEGINS) and not _BEGINS.startswith(content):
            os.close(self._file)
            remedy = "name a new file, or one that such a command made"
            raise InputError("holds something else than answers of ddpsim", place=str(path), remedy=remedy)
        lines_of_this_code = ((key, answer) for key, answer in _read(content) if key.startswith(self._code))
        self.entries |= {key.removeprefix(self._code): answer for key, answer in lines_of_this_code}
        self.is_new = content == b""
        # Whether the file ends in a torn line: the next one begins on a line of its own.
        self._torn = not content.endswith(b"\n") and content != b""

    def add(self, answers: Mapping[str, str]) -> None:
        """Append answers, each one line of JSON, which are on their way to the disk when this returns."""
        bodies = {key: answer.encode() for key, answer in answers.items()}
        lines = b"\n" if self._torn else b""
        for key, body in bodies.items():
            head = f'{{"point": "{self._code}{key}", "crc32": {zlib.crc32(body)}, "answer": '
            lines += head.encode() + body + b"}\n"
        try:
            # Unbuffered appends; where one fails in the middle, the rest of the file stays readable.
            while lines:
                self._torn = True
                lines = lines[os.write(self._file, lines) :]
        except OSError as error:
            raise self._make_write_error(error) from error
        self._torn = False
        self.entries |= {key: memoryview(body) for key, body in bodies.items()}

    def close(self, *, done: bool) -> None:
        """Close the file, and remove it where all is `done` or nothing is in it."""
        if done or (self.is_new and not self.entries):
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _content(self) -> bytes:
        """Return what is in the file that was opened, whatever stands at its path by now."""
        raw = os.fdopen(os.dup(self._file), "rb", buffering=0)
        with BoundedFile(raw, str(self.path), InputError, "name another file, or remove this one", _MOST_BYTES) as file:
            return file.read()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            what, remedy = "another process is writing it", "let that one end, or name another file"
            raise InputError(what, place=str(self.path), remedy=remedy) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise

    def _make_write_error(self, error: OSError) -> InputError:
        remedy = "name a file in a folder you may write to, with room for it"
        return InputError(f"cannot be written: {error.strerror}", place=str(self.path), remedy=remedy)


@contextmanager
def open_journal(cache: str | Path | None, beside: str | Path | None = None) -> Iterator[Journal | None]:
    """Yield the journal that a user names, which stays, or else one next to the file that is being made.

    The latter is removed where the block ends well, and stays where it does not. None without a file, and where
    that is a device, a pipe or standard output.
    """
    if cache is not None:
        path = Path(os.path.realpath(cache))
    elif beside is None or str(beside) == "-" or not is_regular(beside):
        yield None
        return
    else:
        path = Path(os.path.realpath(beside) + ENDING)
    journal = Journal(path)
    try:
        yield journal
    except BaseException:
        journal.close(done=False)
        raise
    journal.close(done=cache is None)


@cache
def code_digest() -> str:
    """Return a digest of the code of this package and of its table of GPUs, both of which determine answers."""
    digest = hashlib.sha256()
    folders = [(Path(__file__).parents[2], "*.py"), *((folder, "*.yaml") for folder in FOLDERS["gpu"])]
    for folder, names in folders:
        for path in sorted(folder.rglob(names)):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _read(content: bytes) -> Iterator[tuple[str, memoryview]]:
    whole, start = memoryview(content), 0
    while start < len(content):
        newline = content.find(b"\n", start)
        end = len(content) if newline < 0 else newline
        match = _START.match(content, start, end)
        if match is not None and content[end - 1] == _CLOSING:
            body = whole[match.end() : end - 1]
            if zlib.crc32(body) == int(match[2]):
                yield match[1].decode(), body
        start = end + 1
