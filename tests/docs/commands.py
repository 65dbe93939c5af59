"""Write `docs/reference/commands.md` from what each command says under --help: `python -m tests.docs.commands`."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

TARGET = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
GROUPS = ("topo", "workload")
HEAD = """# Command line

Written by `python -m tests.docs.commands` from the programs' own help; a test keeps it current. `ddpexec run` and
`ddpexec microbench` want to be started by torchrun: `torchrun --standalone --nproc-per-node 2 -m ddpexec run ...`.

Rules that hold for every command: `--json` prints one JSON document and nothing else on standard output; exit code 0,
1 where `--max-error` is exceeded, 2 on bad input with one message on standard error; dashes and underscores in option
names are the same; files are written whole or not at all, through symbolic links, and into devices and pipes as they
are. `-` is standard input where a file is read, once a command, and standard output after `-o` and `--report`; what
else the command says goes to standard error then. Whether a file can be written is seen before anything is measured,
and a folder that is made for it is announced.
"""


def programs() -> dict[str, Callable[[list[str]], object]]:
    """Return what runs each program."""
    from ddpexec.__main__ import main
    from ddpsim.cli.app import run

    return {"ddpsim": run, "python -m ddpexec": main}


def help_of(program: str, *words: str) -> str:
    """Return what `program WORDS --help` prints."""
    os.environ["COLUMNS"] = "80"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        programs()[program]([*words, "--help"])
    return text.getvalue().rstrip()


def commands(program: str) -> list[tuple[str, ...]]:
    """Return every command, those of a group after it."""

    def listed(*words: str) -> list[str]:
        lines = help_of(program, *words).split("Commands:\n", 1)[1].splitlines()
        return [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]

    found: list[tuple[str, ...]] = []
    for name in listed():
        found += [(name, sub) for sub in listed(name)] if name in GROUPS else [(name,)]
    return found


def reference() -> str:
    """Return the page."""
    pages = (
        f"## {' '.join((program, *words))}\n\n```text\n{help_of(program, *words)}\n```\n"
        for program in programs()
        for words in [(), *commands(program)]
    )
    return "\n".join([HEAD, *pages])


if __name__ == "__main__":
    TARGET.write_text(reference())
