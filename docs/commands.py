"""Write `docs/reference/commands.md` from what each command says under --help: `python docs/commands.py`."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

TARGET = Path(__file__).parent / "reference" / "commands.md"
GROUPS = ("topo", "workload")
HEAD = """# Command line

Written by `python docs/commands.py` from the program's own help; a test keeps it current. `torchrun ... -m ddpexec run`
and the other commands of `ddpexec` answer to `--help` likewise.

Rules that hold for every command: `--json` prints one JSON document and nothing else on standard output; exit code 0,
1 where `--max-error` is exceeded, 2 on bad input with one message on standard error; dashes and underscores in option
names are the same; files are written whole or not at all.
"""


def help_of(*words: str) -> str:
    """Return what `ddpsim WORDS --help` prints."""
    from ddpsim.cli.app import run

    os.environ["COLUMNS"] = "80"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run([*words, "--help"])
    return text.getvalue().rstrip()


def commands() -> list[tuple[str, ...]]:
    """Return every command, those of a group after it."""

    def listed(*words: str) -> list[str]:
        lines = help_of(*words).split("Commands:\n", 1)[1].splitlines()
        return [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]

    found: list[tuple[str, ...]] = []
    for name in listed():
        found += [(name, sub) for sub in listed(name)] if name in GROUPS else [(name,)]
    return found


def reference() -> str:
    """Return the page."""
    pages = (f"## ddpsim {' '.join(words)}\n\n```text\n{help_of(*words)}\n```\n" for words in commands())
    return "\n".join([HEAD, f"```text\n{help_of()}\n```\n", *pages])


if __name__ == "__main__":
    TARGET.write_text(reference())
