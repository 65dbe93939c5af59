"""The page of commands describes every option of every command, once where several have it alike."""

from __future__ import annotations

import re

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
                assert own != (f"`{each.flag}`" in part.rpartition("```")[2] and said in shared), (words, each)
