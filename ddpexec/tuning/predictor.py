"""Predictions made by a process of their own, so that the training goes on meanwhile; it ends when its pipe does."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

_LENGTH = struct.Struct("!Q")
_ROOT = Path(__file__).parents[2]
_NICENESS = 5
"""As `nice` counts it: beside a busy training the process gets a third of a share. By hand: at 19, where the training
keeps every core busy, two seconds of predicting took longer than a round of tuning."""


class PredictingProcess:
    """Ranks the caps of what was observed in another process, which is started at once and imports meanwhile."""

    def __init__(self) -> None:
        known = os.environ.get("PYTHONPATH")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *([known] if known else [])])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._answer: list[object] = []
        self._thread: threading.Thread | None = None

    def ask(self, observed: object) -> None:
        """Have `rank_caps` asked of what was observed; `answer` has it later."""
        self._answer.clear()
        self._thread = threading.Thread(target=self._wait, args=(pickle.dumps(observed),), daemon=True)
        self._thread.start()

    def answer(self) -> object | None:
        """Return the ranking, or the sentence that says why there is none; None while it is not known."""
        return self._answer[0] if self._answer else None

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait(1.0)

    def _wait(self, question: bytes) -> None:
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            _write(self._process.stdin, question)
            self._answer.append(pickle.loads(_read(self._process.stdout)))
        except (OSError, ValueError, EOFError, pickle.PickleError) as error:
            self._answer.append(f"the predicting process is gone: {type(error).__name__}")


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    if len(message) < length:
        raise EOFError
    return message


def _serve() -> None:
    """Answer questions from standard input until it ends."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    from ddpexec.tuning.ranking import rank_caps

    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    sys.stdout = io.StringIO()  # what anybody prints is no answer
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            question = pickle.loads(_read(questions))
            try:
                answer: object = rank_caps(question)
            except Exception as error:  # whatever it is, the training goes on without a prediction
                answer = f"not predicted: {type(error).__name__}: {error}"
            _write(answers, pickle.dumps(answer))


if __name__ == "__main__":
    _serve()
