"""Run every command shown in the documentation and write its output into the page: `python -m tests.docs.refresh`.

A block that starts with ```console is run and its output compared by the tests to the letter; in ```console estimates
numbers and what follows from them may differ; in ```console quiet no output is shown. A block ```yaml NAME or
```python NAME is written to the file NAME first.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|yaml|python)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
SHOWN_LINES = 60
Run = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Command:
    """A shown command and the output under it."""

    line: str
    shown: str


def pages() -> list[Path]:
    """Return every page."""
    return sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def commands(body: str) -> list[Command]:
    """Return the commands of a console block."""
    parts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    return [Command(line, shown.rstrip("\n")) for line, _, shown in (part.partition("\n") for part in parts)]


def as_typed(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line in `folder` by this interpreter, with variables beside this process's."""
    programs = {"ddpsim": ["-m", "ddpsim"], "python": [], "torchrun": ["-m", "torch.distributed.run"]}
    command = [sys.executable, *programs[words[0]], *words[1:]]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=110
    )


def execute(line: str, folder: Path, run: Run = as_typed) -> str:
    """Run one shown command in `folder` and return its standard output.

    Raises:
        RuntimeError: where it fails, with what it said.
    """
    words = shlex.split(line)
    target = words.pop() if ">" in words else None
    words = [word for word in words if word != ">"]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    done = run(words, folder, environment)
    if done.returncode:
        raise RuntimeError(f"$ {line}\nexit code {done.returncode}\n{done.stderr}")
    if target:
        (folder / target).write_text(done.stdout)
        return ""
    return "\n".join(text.rstrip() for text in done.stdout.rstrip("\n").split("\n"))


def write(file: Path, text: str) -> None:
    """Write a file that a page shows, in a folder of its own where its name has one."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def shortened(output: str) -> str:
    """Return what a page shows of `output`: the first lines where it is long."""
    lines = output.split("\n")
    return output if len(lines) <= SHOWN_LINES else "\n".join([*lines[:16], "..."])


def matches(output: str, shown: str, word: str) -> bool:
    """Return whether a page's `shown` stands for `output`: to the letter but for `...`; of estimates, the first line.

    Estimates move with the model's constants, and plans with them; their first line, without numbers, stays.
    """
    if word == "quiet":
        return True
    texts = [NUMBER.sub("#", text.split("\n")[0]) if word == "estimates" else text for text in (shown, output)]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(*(f"{text}\n" for text in texts), flags)


def refreshed(text: str, folder: Path) -> str:
    """Return a page with every output as it is now."""

    def block(match: re.Match[str]) -> str:
        kind, word, body = match.groups()
        if kind != "console":
            if word:
                write(folder / word, body)
            return match[0]
        lines = []
        for command in commands(body):
            output = execute(command.line, folder)
            kept = word != "estimates" and matches(output, command.shown, word)
            output = command.shown if kept else shortened(output)
            lines.append(f"$ {command.line}\n" + (f"{output}\n" if output and word != "quiet" else ""))
        return f"```console{f' {word}' if word else ''}\n{''.join(lines)}```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in pages():
        with tempfile.TemporaryDirectory() as name:
            page.write_text(refreshed(page.read_text(), Path(name)))
