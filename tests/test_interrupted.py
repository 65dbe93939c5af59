"""SIGINT while a command imports is one line and 130, in every command and whatever was imported just then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddpexec.commands import COMMANDS as DDPEXEC
from ddpsim.cli.app import COMMANDS as DDPSIM

RUN = """
import os, runpy, sys
package, imported, *words = sys.argv[1:]
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == imported:
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Interrupting())
sys.argv = [package, *words]
runpy.run_module(package, run_name="__main__")
"""
"""Runs a package's command, which gets a signal where it imports a module."""
CLEARING = RUN.replace(
    "            os.kill(os.getpid(), 2)\n",
    """\
            try:
                os.kill(os.getpid(), 2)
                len(name)
            except BaseException:
                pass
""",
)
"""The same where what imports clears each error, as C does that asks for an attribute."""

PREDICT = ("predict", "--workload", "mlp", "--topology", "dgx-1v")
FIRST = ("dataclasses", "ddpsim.cli", "ddpsim.common.errors", "ddpsim.common.stopping", "enum", "threading", "typing")
"""What is imported before any command is known, or may be."""
CAPTURE = ("capture", "--model", "mlp", "-o", "/dev/null")


def interrupted(package: str, imported: str, words: tuple[str, ...], program: str = RUN) -> tuple[int, str, str]:
    ended = subprocess.run([sys.executable, "-c", program, package, imported, *words], capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


def own_module(command: str) -> str:
    listed = next(each for each in DDPSIM if each.name == command)
    return f"ddpsim.cli.{listed.module or command.replace('-', '_')}"


@pytest.mark.parametrize(
    ("package", "imported", "words"),
    [
        *(("ddpsim", "typer", (each.name,)) for each in DDPSIM),
        *(("ddpsim", own_module(each.name), (each.name,)) for each in DDPSIM),
        *(("ddpexec", "ddpexec.commands", (name,)) for name in DDPEXEC),
        *(("ddpexec", f"ddpexec.commands.{name.replace('-', '_')}", (name,)) for name in DDPEXEC),
        *((package, imported, ("--help",)) for package in ("ddpsim", "ddpexec") for imported in FIRST),
        ("ddpexec", "ddpsim", ("--help",)),
        ("ddpsim", "numpy", PREDICT),
        ("ddpsim", "simpy.core", PREDICT),
        ("ddpexec", "torch.nn", CAPTURE),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_an_interrupt_in_an_import(package: str, imported: str, words: tuple[str, ...]) -> None:
    assert interrupted(package, imported, words) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(
    ("package", "imported", "words"),
    [("ddpsim", "numpy", PREDICT), ("ddpsim", "simpy.core", PREDICT), ("ddpexec", "torch.nn", CAPTURE)],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_an_interrupt_that_an_import_clears(package: str, imported: str, words: tuple[str, ...]) -> None:
    assert interrupted(package, imported, words, CLEARING) == (130, "", "error: interrupted\n")
