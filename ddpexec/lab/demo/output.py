"""What the demo prints: headings, progress, and the commands it runs, which are also written to a file."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import typer

from ddpsim.cli.output import note, write
from ddpsim.cli.progress import show

RANKS = 2
"""Of each command that runs for real."""


def say(message: str) -> None:
    """Write a heading."""
    write(f"\n== {message}")


@contextmanager
def silenced(quiet: bool) -> Iterator[None]:
    """Where `quiet`, let nothing that is written reach standard output, so that a document stands there alone."""
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        yield


def progress(message: str) -> None:
    """Show `message` on one line of a terminal, or as a line of its own elsewhere."""
    show(message)
    if message and not sys.stderr.isatty():
        note(message)


class Commands:
    """Runs commands as a user would type them, with one thread a process; `file` keeps them to be typed again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_text("")

    def torchrun(self, *arguments: object) -> str:
        """Run a command of ddpexec on every rank; return what it wrote on standard output.

        Raises:
            typer.Exit: where it fails, after a note with what it wrote.
        """
        launcher = ("--standalone", "--nproc-per-node", RANKS, "-m", "ddpexec")
        words = [str(argument) for argument in (*launcher, *arguments)]
        with self._file.open("a") as log:
            log.write(f"OMP_NUM_THREADS=1 torchrun {' '.join(words)}\n")
        progress(f"running: ddpexec {' '.join(map(str, arguments))[:60]} ...")
        command = [sys.executable, "-m", "torch.distributed.run", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        progress("")
        if done.returncode:
            note(f"{done.stdout}{done.stderr}demo: {' '.join(command)} failed with exit code {done.returncode}")
            raise typer.Exit(1)
        return done.stdout
