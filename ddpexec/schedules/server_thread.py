"""A server beside a trainer: a thread of a rank that trains, which serves all ranks from its first forward on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ddpexec.schedules.loopback import LoopbackGroup
from ddpexec.schedules.served import Server, ServerStatistics


class ServerThread:
    """Serves in a thread until all training ranks have ended.

    Args:
        server: of this rank.
        groups: by which it and this rank's training exchange messages: what it fails with ends the rank's waits too.
        asynchronous: whether it updates by each rank's gradients as they come.
    """

    def __init__(self, server: Server, groups: Sequence[LoopbackGroup], *, asynchronous: bool) -> None:
        self._server, self._groups = server, groups
        self._serve = server.serve_each if asynchronous else server.serve_all
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ddpexec server beside", daemon=True)
        self._thread.start()

    def join(self) -> ServerStatistics:
        """Wait until all training ranks have ended; return what the server has done.

        Raises:
            ExecutionError: what ended it before.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._server.served

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._error = error
            for group in self._groups:
                group.fail(error)
