"""What the demo says: headings, progress, and each command before it runs."""

from __future__ import annotations

import os
import subprocess
import sys

import typer

from ddpsim.cli.output import note, write
from ddpsim.cli.progress import show


def say(message: str) -> None:
    """Write a heading."""
    write(f"\n== {message}")


def progress(message: str) -> None:
    """Show `message` on one line of a terminal, or as a line of its own elsewhere."""
    show(message)
    if message and not sys.stderr.isatty():
        note(message)


def module(name: str, *arguments: object, shown: str | None = None) -> str:
    """Show and run `python -m name arguments` with one thread a process; return what it wrote on standard output.

    Raises:
        typer.Exit: where it fails, after a note.
    """
    words = [str(argument) for argument in arguments]
    write(f"$ {shown or f'python -m {name}'} {' '.join(words)}")
    sys.stdout.flush()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", name, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        note(f"{done.stdout}demo: the command above failed with exit code {done.returncode}")
        raise typer.Exit(1)
    return done.stdout
