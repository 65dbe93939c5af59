"""Run a function on several ranks: `run` on a pool's, which stand; `outcomes` on processes of its own.

A test that asserts on the ranks themselves, and on nothing that they return, is a function of a rank under `on`.


Tests of set-up, of the loss of a rank and of teardown have ranks of their own: a file as the store, results as pickles.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests import forked
from tests.ddpexec.groups import pool


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: its result, or its error and traceback, or an exit code alone."""

    value: Any = None
    error: str | None = None
    exit_code: int | None = 0


@dataclass(frozen=True)
class Group:
    """The process group that the ranks form."""

    world_size: int
    folder: str
    timeout_s: float
    backend: str


def outcomes(
    world_size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 60,
    group_timeout_s: float = 45,
    start: str = "fork",
    backend: str = "gloo",
) -> list[Outcome]:
    """Call `function(rank, *arguments)` on each rank and return how each ended, by rank.

    No rank outlives the call: after `timeout_s` seconds, or an interruption, those that still run are killed.

    Ranks on a GPU need `start="spawn"`, for CUDA does not survive a fork, and with it a function that a module holds.
    Under `backend="nccl"` rank r has GPU r.
    """
    with tempfile.TemporaryDirectory() as folder:
        context: Any = multiprocessing.get_context(start)
        if start == "fork":
            forked.warm_up()
        group = Group(world_size, folder, group_timeout_s, backend)
        deadline_s = time.monotonic() + timeout_s
        processes = []
        try:
            for rank in range(world_size):
                process = context.Process(target=_main, args=(rank, group, function, arguments), daemon=True)
                process.start()
                processes.append(process)
            for process in processes:
                process.join(max(0.0, deadline_s - time.monotonic()))
            hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
        finally:
            for process in processes:
                process.kill()
                process.join()
        if hung:
            raise TimeoutError(f"ranks {hung} were still running after {timeout_s} s")
        for rank, process in enumerate(processes):
            if process.exitcode in pool.ABORTS:
                raise pool.aborted(rank, process.exitcode)
        return [_outcome(Path(folder) / str(rank), process.exitcode) for rank, process in enumerate(processes)]


def run(world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60) -> list[Any]:
    """Call `function(rank, *arguments)` on standing ranks and return the results by rank; any failure is raised here.

    They have what was imported when they were forked, and nothing that a test has changed in its own process since.
    """
    return pool.run(world_size, function, *arguments, timeout_s=timeout_s)


def on(world_size: int | str, *, timeout_s: float = 60) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of what each of so many standing ranks does, a function of its rank and the test's parameters.

    A text is the name of the parameter that says how many.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        _, *asked = inspect.signature(function).parameters.values()
        taken = {parameter.name for parameter in asked}
        if isinstance(world_size, str) and world_size not in taken:
            asked.append(inspect.Parameter(world_size, inspect.Parameter.POSITIONAL_OR_KEYWORD))

        def test(**given: Any) -> None:
            count = given[world_size] if isinstance(world_size, str) else world_size
            own = {name: value for name, value in given.items() if name in taken}
            run(count, _on_rank, function.__module__, function.__qualname__, own, timeout_s=timeout_s)

        test.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        test.on_rank = function  # type: ignore[attr-defined]
        test.__module__, test.__qualname__ = function.__module__, function.__qualname__
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test

    return made


def _on_rank(rank: int, module: str, name: str, given: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).on_rank(rank, **given)


def run_own(world_size: int, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """Do as `run` on ranks of this call alone, forked from this process as it is now."""
    results = outcomes(world_size, function, *arguments, **options)
    for rank, result in enumerate(results):
        if result.error is not None or result.exit_code != 0:
            raise AssertionError(f"rank {rank} (exit code {result.exit_code}):\n{result.error}")
    return [result.value for result in results]


def _outcome(path: Path, exit_code: int | None) -> Outcome:
    if not path.exists():
        return Outcome(exit_code=exit_code, error="left no result")
    value, error = pickle.loads(path.read_bytes())
    return Outcome(value, error, exit_code)


def _main(rank: int, group: Group, function: Callable[..., Any], arguments: Any) -> None:
    gc.freeze()  # what the forking process holds, hundreds of thousands of objects late in a long run, is not looked at
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # as a pool does
    value, error = None, None
    try:
        if group.backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            group.backend,
            init_method=f"file://{group.folder}/store",
            rank=rank,
            world_size=group.world_size,
            timeout=timedelta(seconds=group.timeout_s),
        )
        if group.backend == "gloo":
            dist.barrier()  # ranks connect to one another when they first talk
        value = function(rank, *arguments)
    except BaseException as exception:
        error = f"{type(exception).__name__}: {exception}\n{traceback.format_exc()}"
    temporary = Path(group.folder) / f"{rank}.part"
    temporary.write_bytes(pickle.dumps((value, error)))
    temporary.rename(Path(group.folder) / str(rank))
    os._exit(0)
