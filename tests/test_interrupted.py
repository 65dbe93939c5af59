"""SIGINT while a command imports is one line and 130, whatever was imported just then."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import os, runpy, signal, sys
package, imported, *words = sys.argv[1:]
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = [package, *words]
runpy.run_module(package, run_name="__main__")
"""
"""Runs a package's command, which gets a signal where it imports a module."""


@pytest.mark.parametrize(
    ("package", "imported", "command"),
    [
        ("ddpsim", "typer", ("predict", "--workload", "mlp", "--topology", "dgx-1v")),
        ("ddpsim", "numpy", ("predict", "--workload", "mlp", "--topology", "dgx-1v")),
        ("ddpsim", "simpy.core", ("sweep", "--workload", "mlp", "--topology", "dgx-1v")),
        ("ddpexec", "typer", ("capture", "--model", "mlp", "-o", "/dev/null")),
        ("ddpexec", "torch.nn", ("capture", "--model", "mlp", "-o", "/dev/null")),
    ],
)
def test_an_interrupt_in_an_import(package: str, imported: str, command: tuple[str, ...]) -> None:
    ended = subprocess.run([sys.executable, "-c", RUN, package, imported, *command], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")
