"""Predictions made by a process of their own, so that the training goes on meanwhile; it ends when its pipe does."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import Future, wait
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ddpexec.groups.environment import module_environment
from ddpexec.groups.threads import in_thread

_NICENESS = 5
"""As `nice` counts it: beside a busy training the process gets a third of a share. By hand: at 19, where the training
keeps every core busy, two seconds of predicting took longer than a round of tuning."""


class PredictingProcess:
    """Ranks the caps of what was observed in another process, which is started at once and imports meanwhile."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=module_environment(),
            start_new_session=True,
        )
        theirs.close()
        self._answer: Future[object] | None = None

    def ask(self, observed: object) -> None:
        """Send the observation to the process, which runs `rank_caps`; `answer` returns its result later."""
        self._answer = in_thread(partial(self._wait, pickle.dumps(observed)))

    def answer(self) -> object | None:
        """Return the ranking, or the sentence that says why there is none; None while it is not known."""
        return self._answer.result() if self._answer is not None and self._answer.done() else None

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.kill()
            self._process.wait(1.0)
            if self._answer is not None:  # who waits reads that there is no more
                wait([self._answer], 1.0)
            self._pipe.close()

    def _wait(self, question: bytes) -> object:
        try:
            self._pipe.send_bytes(question)
            answer: object = self._pipe.recv()
            return answer
        except (OSError, ValueError, EOFError, pickle.PickleError) as error:
            return f"the predicting process is gone: {type(error).__name__}"


def _serve() -> None:
    """Answer questions from the pipe whose number is given, until it ends."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    from ddpexec.tuning.ranking import rank_caps

    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            question = pipe.recv()
            try:
                answer: object = rank_caps(question)
            except Exception as error:  # whatever it is, the training goes on without a prediction
                answer = f"not predicted: {type(error).__name__}: {error}"
            pipe.send(answer)


if __name__ == "__main__":
    _serve()
