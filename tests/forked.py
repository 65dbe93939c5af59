"""Commands in forks of this interpreter, which need not import again what it has: seconds a process with torch.

The command lines are `ddpsim ...`, `python -m MODULE ...`, `python -c CODE ...` and `torchrun --standalone
--nproc-per-node N -m MODULE ...`. They have no processes of their own: `--workers 2` is one here.
That they can be typed as they stand is for a few tests that start interpreters.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node")


def command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float = 110
) -> CompletedProcess[str]:
    """Run a command line in `folder` with variables beside this process's; return what it left, of all ranks together.

    Its exit code is the first rank's that is not zero. No process outlives the call.

    Raises:
        ValueError: none of the command lines that can be forked.
        TimeoutError: it was still running after `timeout_s` seconds.
    """
    begin, variables = _parsed(words)
    with tempfile.TemporaryDirectory() as name:
        out, err = (Path(name) / each for each in ("out", "err"))
        context: Any = multiprocessing.get_context("fork")
        processes = [
            context.Process(target=_main, args=(begin, folder, {**environment, **told}, out, err), daemon=True)
            for told in variables
        ]
        deadline_s = time.monotonic() + timeout_s
        warm_up()
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, deadline_s - time.monotonic()))
            if any(process.is_alive() for process in processes):
                raise TimeoutError(f"{' '.join(words)!r} was still running after {timeout_s} s")
        finally:
            for process in processes:
                process.kill()
                process.join()
        code = next((process.exitcode for process in processes if process.exitcode), 0)
        return CompletedProcess(list(words), code, out.read_text(), err.read_text())


def warm_up() -> None:
    """Import what torch does at the first step of an optimizer or of its DDP, so that no fork has to: a second each."""
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")


def _parsed(words: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Return what an interpreter is given to run, from `-m` or `-c` on, and for each rank what torchrun tells it."""
    if words[0] == "ddpsim":
        return ["-m", *words], [{}]
    launched = tuple(words[:3]) == TORCHRUN
    rest = words[4:] if launched else words[1:]
    if rest[0] != "-m" and (launched or rest[0] != "-c"):
        raise ValueError(f"{' '.join(words)!r} cannot be forked")
    return list(rest), _torchrun(int(words[3])) if launched else [{}]


def _torchrun(ranks: int) -> list[dict[str, str]]:
    """Return the variables by which torchrun tells each rank its place."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [{**common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _main(begin: list[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    os.environ.update(environment)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    code: object = 0
    option, main, *arguments = begin
    sys.argv = [main if option == "-m" else option, *arguments]
    try:
        _run(option, main)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def _run(option: str, main: str) -> None:
    if option == "-c":
        exec(compile(main, "<string>", "exec"), {"__name__": "__main__"})
        return
    for name in (f"{main}.__main__", main):  # else it would be told that these may be imported twice
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)
    runpy.run_module(main, run_name="__main__", alter_sys=True)
