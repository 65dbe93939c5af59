"""`DaskPool`: the workers of a Dask cluster, behind a scheduler at an address."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from ddpsim.common.version import __version__
from ddpsim.common.workers.crew import WorkersError

REACH_S = 5.0
"""Seconds in which a scheduler answers, and has a worker; chosen by hand, of a network where it takes milliseconds."""

_PLACE = "scheduler"
_LOGS = ("distributed", "distributed.client", "distributed.core", "tornado.application")
"""Loggers of the client, silent while it is used: an error is printed once, in this project's words."""
_ADDRESS = re.compile(r"(?:(tcp|tls|ws|wss)://)?([^\s/]+):(\d{1,5})")
_LONGEST_GREETING = 1 << 20
"""Bytes; Dask's has some hundreds."""


class DaskPool:
    """All workers of the scheduler at `address`, each of the version of this process.

    A worker that joins later has its version checked with each point. Dask itself gives a lost worker's points to
    others, as often as the scheduler's `allowed-failures` says.

    Raises:
        WorkersError: `distributed` is not installed, nobody answers there as a scheduler does, it has no worker, or
            one of another version.
    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client, KilledWorker
        except ImportError as error:
            remedy = "install what a cluster needs: pip install 'ddpsim[cluster]'"
            raise WorkersError("distributed cannot be imported", place=_PLACE, remedy=remedy) from error
        self.address, self._killed = address, KilledWorker
        self._levels = {log: log.level for log in map(logging.getLogger, _LOGS)}
        for log in self._levels:
            log.setLevel(logging.CRITICAL + 1)
        self._client: Any = None
        try:
            self._client = self._connect(Client)
            self._check_workers()
        except BaseException:
            self.dismiss()
            raise
        self._executor = self._client.get_executor(pure=False)
        self.count = sum(self._client.nthreads().values())

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of one call."""
        future: Future[Any] = self._executor.submit(function, *arguments)
        return future

    def is_lost(self, error: BaseException) -> bool:
        """Whether Dask gave a point up because each worker that had it was lost."""
        return isinstance(error, self._killed)

    def convert_error(self, error: BaseException) -> BaseException:
        """Return the error of a connection that broke in words; any other as it is."""
        return self._make_lost_error() if isinstance(error, CancelledError | OSError) else error

    def check(self) -> None:
        """Refuse to wait for a scheduler that is gone: some futures of Dask's never end then."""
        if self._client.status != "running":
            raise self._make_lost_error()

    def renew(self) -> bool:
        """Say that there is nothing to renew: Dask gave the points to other workers already."""
        return False

    def dismiss(self) -> None:
        """Cancel what is under way, and leave the cluster to its owner."""
        if self._client is not None:
            self._client.close(timeout=REACH_S)
        for log, level in self._levels.items():
            log.setLevel(level)

    def _make_lost_error(self) -> WorkersError:
        remedy = "see that it runs, and give the same command again: it goes on from what is kept"
        return WorkersError(f"{self.address} is gone, or gave the points up", place=_PLACE, remedy=remedy)

    def _connect(self, client: Callable[..., Any]) -> Any:
        try:
            _check_answers(self.address)
            return client(self.address, timeout=REACH_S, set_as_default=False)
        except (OSError, ValueError, OverflowError) as error:
            remedy = "start one (`dask scheduler`) and give the address that it prints, e.g. tcp://10.0.0.1:8786"
            what = f"no Dask scheduler answers at {self.address!r} within {REACH_S:g} s"
            raise WorkersError(what, place=_PLACE, remedy=remedy) from error

    def _check_workers(self) -> None:
        """Refuse a scheduler without workers, and a worker without this version of ddpsim."""
        try:
            self._client.wait_for_workers(1, timeout=REACH_S)
        except TimeoutError as error:
            remedy = f"start some: `dask worker {self.address} --nworkers auto --nthreads 1`"
            raise WorkersError(f"{self.address} has no worker", place=_PLACE, remedy=remedy) from error
        versions = {f"scheduler {self.address}": self._client.run_on_scheduler(_version_reader())}
        versions |= {f"worker {name}": version for name, version in sorted(self._client.run(_version_reader()).items())}
        for place, version in versions.items():
            if version != __version__:
                what = f"has {f'ddpsim {version}' if version else 'no ddpsim'}, this is ddpsim {__version__}"
                remedy = f"install ddpsim {__version__} there, and start it anew"
                raise WorkersError(what, place=place, remedy=remedy)


def _version_reader() -> Callable[[], str | None]:
    """Return a function that returns ddpsim's version there, None without ddpsim.

    A local function is pickled by value: it also runs where the installed ddpsim lacks this file.
    """

    def version() -> str | None:
        try:
            import ddpsim
        except ImportError:
            return None
        return str(getattr(ddpsim, "__version__", "without a version"))

    return version


def _check_answers(address: str) -> None:
    """Refuse an address that is none, or at which nobody greets as a Dask scheduler does.

    Dask's own client waits without end for the greeting of a server that says nothing.

    Raises:
        OSError: nobody is there, or says anything in time.
        ValueError: no address, or another greeting: a scheduler's starts with its length in eight bytes.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"{address!r} is not HOST:PORT")
    if match[1] not in (None, "tcp"):
        return
    with socket.create_connection((match[2].strip("[]"), int(match[3])), REACH_S) as there:
        there.settimeout(REACH_S)
        greeting = there.recv(8, socket.MSG_WAITALL)
    if len(greeting) < 8 or int.from_bytes(greeting, "little") > _LONGEST_GREETING:
        raise ValueError("what answers is no scheduler")
