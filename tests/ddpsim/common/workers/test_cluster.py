"""A Dask cluster on this machine computes points as this process does, and what is wrong with one is said by name."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from ddpsim.common.version import __version__
from ddpsim.common.workers.crew import WorkersError
from ddpsim.common.workers.points import Points, sort_results
from ddpsim.common.workers.requests import Workers
from tests.ddpsim.common.workers.test_points import ending, squared

pytest.importorskip("distributed")

pytestmark = pytest.mark.needs("wait")

ROOT = Path(__file__).parents[4]
SCHEDULER = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
WORKER = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "60")


class Cluster:
    """A scheduler, and workers that are added to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.file = folder / "scheduler.json"
        self._start(*SCHEDULER, "--scheduler-file", str(self.file), path=[str(ROOT)])
        while not self.file.exists() or not self.file.read_text().endswith("}"):
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]

    def worker(self, *paths: Path) -> subprocess.Popen[bytes]:
        """Add a worker that finds modules under `paths` first."""
        return self._start(*WORKER, self.address, path=[*map(str, paths), str(ROOT)])

    def _start(self, module: str, *words: str, path: list[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *words], env=environment, cwd=self.folder, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """End every process of it."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster(tmp_path_factory.mktemp("cluster")))
        return made[-1]

    yield make
    for each in made:
        each.end()


def test_a_cluster_computes_the_same_and_redoes_what_a_lost_worker_had(
    cluster: Callable[[], Cluster], tmp_path: Path
) -> None:
    here = cluster()
    for _ in range(2):
        here.worker()
    expected = [number * number for number in range(30)]
    with Workers(scheduler=here.address).crew(30) as crew:
        assert list(sort_results(Points(squared, range(30), crew))) == expected
        assert list(sort_results(Points(partial(ending, tmp_path, 7, 1), range(30), crew))) == expected
    assert len(list(tmp_path.iterdir())) == 1


def test_a_worker_of_another_version_is_refused_by_name(cluster: Callable[[], Cluster], tmp_path: Path) -> None:
    other = tmp_path / "ddpsim"
    other.mkdir()
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    here = cluster()
    here.worker(tmp_path)
    with (
        pytest.raises(WorkersError, match=rf"worker tcp://.*: has ddpsim 0\.0\.9, this is ddpsim {__version__}"),
        Workers(scheduler=here.address).crew(4),
    ):
        pass


def test_a_scheduler_without_workers_or_out_of_reach_is_named(
    cluster: Callable[[], Cluster], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ddpsim.common.workers.cluster.REACH_S", 0.5)
    here = cluster()
    with pytest.raises(WorkersError, match=f"scheduler: {here.address} has no worker"), _crew(here.address):
        pass
    here.end()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        silent = f"tcp://127.0.0.1:{deaf.getsockname()[1]}"
        for address in (here.address, silent, "nonsense", "ftp://127.0.0.1:1", "tcp://127.0.0.1:notaport", ""):
            with pytest.raises(WorkersError, match="no Dask scheduler answers"), _crew(address):
                pass
    assert capfd.readouterr() == ("", "")


def test_a_scheduler_that_goes_away_is_one_message(cluster: Callable[[], Cluster]) -> None:
    here = cluster()
    here.worker()
    with Workers(scheduler=here.address).crew(500) as crew:
        points = Points(squared, range(5000), crew)
        next(points)
        here.end()
        with pytest.raises(WorkersError, match=r"scheduler: tcp://.* is gone"):
            list(points)


def _crew(address: str) -> AbstractContextManager[object]:
    return Workers(scheduler=address).crew(4)
