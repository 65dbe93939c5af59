"""The page of commands describes every option of every command, once where several have it alike."""

from __future__ import annotations

import re

from ddpsim.common.tables import COLUMNS
from tests.docs import commands

HELP = """Usage: x [OPTIONS]

  Do something.

Options:
  --a N          A number of one-
                 sided things.  [default: 1]
  --long-name one|two
                 Which.
  -h, --help     Show this message and exit.
"""


def test_help_is_read_back() -> None:
    head, entries = commands.split(HELP)
    assert head == "Usage: x [OPTIONS]\n\n  Do something."
    assert [(each.flag, each.spec, each.text) for each in entries] == [
        ("--a", "--a N", "A number of one-sided things. [default: 1]"),
        ("--long-name", "--long-name one|two", "Which."),
    ]


def test_an_option_is_shared_where_enough_commands_say_the_same() -> None:
    alike, other = commands.Entry("--n N", "Nodes.", "Machine"), commands.Entry("--n 1,2", "Node counts.", "Machine")
    assert commands.shared_options({"a": [alike], "b": [alike], "c": [other]}) == {}
    assert commands.shared_options({"a": [other], "b": [alike], "c": [alike], "d": [alike]}) == {"--n": alike}


def test_every_option_of_every_command_is_described() -> None:
    page = re.split(r"^## ", commands.TARGET.read_text(), flags=re.MULTILINE)
    parts = {name: text for name, _, text in (part.partition("\n") for part in page[1:])}
    shared = " ".join(parts[commands.SHARED].split())
    for program in commands.programs():
        for words in commands.commands(program):
            entries = commands.split(commands.help_of(program, *words))[1]
            assert entries or words[-1] in commands.GROUPS
            part = parts[" ".join((program, *words))]
            for each in entries:
                said = " ".join(f"{each.spec} {each.text}".split())
                own = said in " ".join(part.split())
                assert own != (each.flag in named(part) and said in shared), (words, each)


def test_every_column_is_named() -> None:
    part = commands.TARGET.read_text().partition("## Columns\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", part)) >= {*COLUMNS}


def named(part: str) -> set[str]:
    """Return the flags that the line behind a command's block names, those of whole sections too."""
    line = " ".join(part.rpartition("```")[2].split()).removeprefix("Shared: ").removesuffix(".")
    block = commands.TARGET.read_text().partition(f"## {commands.SHARED}")[2].split("```")[1].partition("\n")[2]
    _, shared = commands.split(block)
    found: set[str] = set()
    for piece in line.split(", "):
        whole, _, lacking = piece.partition(" but ")
        flags = set(re.findall(r"`(-[\w-]+)`", whole))
        sections = re.findall(r"\*(.+)\*", whole)
        flags |= {each.flag for each in shared if each.section in sections}
        found |= flags - set(re.findall(r"`(-[\w-]+)`", lacking))
    return found
