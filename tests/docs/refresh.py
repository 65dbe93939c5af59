"""Run every command shown in the documentation and write its output into the page: `python -m tests.docs.refresh`.

A block that starts with ```console is run and its output compared by the tests to the letter. In ```console estimates
numbers may differ by `ESTIMATES_PERCENT`, or by as much as the block says, as in ```console estimates 10%: they move
with the model's constants. In ```console quiet no output is shown. A block ```yaml NAME or ```python NAME is written to
the file NAME first. `python -m tests.docs.refresh PAGE...` is for those pages alone.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|yaml|python)(?: (\S+))?(?: (\S+)%)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
SIGNED_ZERO = re.compile(r"[-+](?=0(?:\.0+)?(?![\d.]))")
RULE = re.compile(r"[-─━]{2,}")
"""A line of a table, as long as what stands in its column."""
MADE = re.compile(r"(?:^| )(?:-o|--out|--trace|--plot|--report|>) (\S+)")
"""What a command writes."""
SHOWN_LINES = 60
DOTS = "..."
"""A line of a page for lines of the output that it leaves out; one a command in `estimates`."""
ESTIMATES_PERCENT = 3.0
Run = Callable[[Sequence[str], Path, Mapping[str, str]], subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Command:
    """A shown command and the output under it."""

    line: str
    shown: str


@dataclass(frozen=True)
class Block:
    """A block of a page that is run, or written to a file.

    Attributes:
        number: among those of its page, from 0.
        kind: `console`, `yaml` or `python`.
        word: of a console block how its output is compared, of another the file that it is written to.
        percent: by how much numbers may differ, where it says.
        body: its lines.
    """

    number: int
    kind: str
    word: str
    percent: str
    body: str

    @property
    def made(self) -> set[str]:
        """The files that it leaves."""
        return set(MADE.findall(self.body)) if self.kind == "console" else {self.word}

    def needs(self, earlier: Block) -> bool:
        """Return whether a command here names a file that an earlier block leaves, or a module in it."""
        names = {str(Path(file).with_suffix("")).replace("/", ".") for file in earlier.made if file.endswith(".py")}
        lines = " ".join(command.line for command in commands(self.body))
        words = set(re.split(r"[ :=]", lines)) - {""}
        return bool(words & (earlier.made | names))


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


def shortened(output: str, shown: str = "") -> str:
    """Return what a page shows of `output`: all that dots in `shown` do not leave out, or the first lines of many."""
    lines, asked = output.split("\n"), shown.split("\n")
    if asked.count(DOTS) > 1:
        return "\n".join(_lines_like(asked, lines))
    if DOTS in asked:
        head, tail = without_middle(output, shown)
        return "\n".join([*head, DOTS, *tail])
    return output if len(lines) <= SHOWN_LINES else "\n".join([*lines[:16], "..."])


def _lines_like(shown: Sequence[str], lines: Sequence[str]) -> Iterator[str]:
    """Yield lines of dots as they are, and for every other the next of `lines` that begins with the same word.

    Raises:
        RuntimeError: where none does.
    """
    left = iter(lines)
    for line in shown:
        found = line if line == DOTS else next((each for each in left if _beginning(each) == _beginning(line)), None)
        if found is None:
            raise RuntimeError(f"{line!r}: no line of the output begins so any more; change the page by hand")
        yield found


def _beginning(line: str) -> list[str]:
    """Return the first word of a line, whatever number it is; nothing of an empty one."""
    return NUMBER.sub("#", line).split()[:1]


def without_middle(output: str, shown: str) -> tuple[list[str], list[str]]:
    """Return as many first and last lines of `output` as stand before and behind the line of dots in `shown`."""
    lines, asked = output.split("\n"), shown.split("\n")
    first = asked.index(DOTS)
    last = len(asked) - first - 1
    return lines[:first], lines[max(first, len(lines) - last) :]


def matches(output: str, shown: str, word: str, percent: str = "") -> bool:
    """Return whether `shown` stands for `output`, to the letter or by estimates, but for what dots leave out."""
    if word == "quiet":
        return True
    if word != "estimates":
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        return doctest.OutputChecker().check_output(f"{shown}\n", f"{output}\n", flags)
    within = float(percent or ESTIMATES_PERCENT) / 100
    if DOTS in shown.split("\n"):
        parts = [without_middle(text, shown) for text in (output, shown)]
        output, shown = ("\n".join([*head, *tail]) for head, tail in parts)
    shown, output = (SIGNED_ZERO.sub("", text) for text in (shown, output))
    words, others = (" ".join(RULE.sub("--", NUMBER.sub("#", text)).split()) for text in (shown, output))
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(output), strict=False)
    return words == others and all(_near(one, other, within) for one, other in pairs)


def _near(shown: str, found: str, within: float) -> bool:
    """Return whether two numbers differ by no more than a share of the greater, or by what the last digit rounds."""
    one, other = (float(text.replace(",", "")) for text in (shown, found))
    digits = 0 if "e" in shown else len(shown.partition(".")[2])
    return abs(one - other) <= max(within * max(abs(one), abs(other)), 1.01 * 10.0**-digits)


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page."""
    return [Block(number, *groups) for number, groups in enumerate(BLOCK.findall(text))]


def before(block: Block, others: Sequence[Block]) -> list[Block]:
    """Return those of a page's blocks that leave what `block` reads, and what they read, in the page's order."""
    found: list[Block] = []
    for other in reversed(others[: block.number]):
        if any(each.needs(other) for each in (block, *found)):
            found.append(other)
    return found[::-1]


def cases(text: str) -> list[Block]:
    """Return the console blocks that are compared by themselves: not a quiet one whose files another reads."""
    every = blocks(text)
    read = {each.number for block in every if block.kind == "console" for each in before(block, every)}
    return [each for each in every if each.kind == "console" and not (each.word == "quiet" and each.number in read)]


def refreshed(text: str, folder: Path) -> str:
    """Return a page with every output as it is now."""

    def block(match: re.Match[str]) -> str:
        kind, word, _, body = match.groups()
        if kind != "console":
            if word:
                write(folder / word, body)
            return match[0]
        lines = []
        for command in commands(body):
            output = execute(command.line, folder)
            kept = word != "estimates" and matches(output, command.shown, word)
            output = command.shown if kept else shortened(output, command.shown)
            lines.append(f"$ {command.line}\n" + (f"{output}\n" if output and word != "quiet" else ""))
        first = match[0].partition("\n")[0]
        return f"{first}\n{''.join(lines)}```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        with tempfile.TemporaryDirectory() as name:
            page.write_text(refreshed(page.read_text(), Path(name)))
