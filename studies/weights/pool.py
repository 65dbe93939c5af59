"""Standing ranks: forked processes that run one case after the other, and are replaced when one is lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

CASES = 12
"""Cases of one set of ranks: process groups that a case makes stay as long as its process."""
GROUP_TIMEOUT_S, CASE_TIMEOUT_S = 60, 150


class Ranks:
    """So many ranks, which call one function for each case.

    Args:
        world: ranks.
        call: `call(case, rank)`; what it returns or raises is sent back.
    """

    def __init__(self, world: int, call: Callable[[Any, int], Any]) -> None:
        self._world, self._call = world, call
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._left = 0

    def run(self, case: Any) -> list[Any]:
        """Return what each rank returned for `case`: a string where it raised or never answered."""
        if not self._left:
            self._start()
        self._left -= 1
        for pipe in self._pipes:
            pipe.send(case)
        found: list[Any] = ["did not answer"] * self._world
        waiting, timeout_s = dict(zip(self._pipes, range(self._world), strict=True)), float(CASE_TIMEOUT_S)
        while waiting:
            ready = wait(list(waiting), timeout_s)
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[call-overload]
                try:
                    found[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    found[rank] = "its process ended"
            if not ready:
                break
            if any(isinstance(each, str) for each in found if each != "did not answer"):
                timeout_s = min(timeout_s, 3.0)  # others wait for the one that raised
        if any(isinstance(each, str) for each in found):
            self.stop()
        return found

    def stop(self) -> None:
        """End the ranks."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder, self._left = [], [], None, 0

    def _start(self) -> None:
        self.stop()
        self._folder, self._left = tempfile.TemporaryDirectory(), CASES
        context: Any = multiprocessing.get_context("fork")
        gc.collect()
        for rank in range(self._world):
            here, there = context.Pipe()
            process = context.Process(target=self._serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def _serve(self, rank: int, pipe: Connection) -> None:
        gc.freeze()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        assert self._folder is not None
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self._folder.name}/store",
            rank=rank,
            world_size=self._world,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        while True:
            try:
                case = pipe.recv()
            except EOFError:
                os._exit(0)
            try:
                answer = self._call(case, rank)
            except BaseException as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                answer = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
            pipe.send(answer)
            gc.collect()


def warm_up() -> None:
    """Import what torch imports at first use, so that no rank has to."""
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.SGD([parameter], lr=0.1).step()
