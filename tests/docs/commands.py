"""Write `docs/reference/commands.md` from what each command says under --help: `python -m tests.docs.commands`.

An option that several commands have stands once, with those of its section, and a command names it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from ddpsim.common.options.exclusions import TABLE
from ddpsim.common.options.option import Section
from ddpsim.common.tables import COLUMNS, heading_of

TARGET = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
FORMATS = TARGET.with_name("formats.md")
GROUPS = ("topo", "workload")
FEWEST = 3
"""Commands that say the same of an option before it is said once for all of them. Chosen by hand: what two share
is easier to read twice than to look up."""
SHARED, OTHER = "Shared options", "Other"
HEAD = f"""# Command line

Written by `python -m tests.docs.commands` from the programs' own help; a test keeps it current. `--help` of a command
prints all of its options together. Here an option that {FEWEST} commands or more have alike is described once, under
[{SHARED.lower()}](#{SHARED.lower().replace(" ", "-")}), and named below each of these commands. What a
command describes itself holds there.

`ddpexec run` and `ddpexec microbench` are started by torchrun:
`torchrun --standalone --nproc-per-node 2 -m ddpexec run ...`.

For every command:

- `--json` prints one JSON document and nothing else on standard output.
- The exit code is 0; 1 where `--max-error` is exceeded; 2 on bad input, with one message on standard error.
- Dashes and underscores in the names of options are the same.
- `-` is standard input where a file is read, once a command, and standard output after `-o` and `--report`. What else
  the command prints goes to standard error then.
- Files are written whole or not at all, through symbolic links, and into devices and pipes as they are.
- Whether a file can be written is checked before anything is measured. A folder that is made for it is announced.
"""
TOGETHER = """\
Names are Python's; an option stands for any value but its default. What is refused is one message that names both.
"""

COLUMNS_HEAD = """\
What `--columns` of `plan`, `sweep`, `compare` and `compression` takes, whichever of them has the value; where a row has
none its cell is a hyphen. The ends of a band have names too: `step_low_s`, `step_high_s`. In a notebook,
`pandas.DataFrame(found.records())` has all.

Keys of a row of `--json`, which [formats](formats.md) describe, with the heading where that says more than the name:

{told}

Columns that put several keys in few words, or are read from inside one:

{table}"""


@dataclass(frozen=True)
class Entry:
    """An option or an argument as help shows it: `--nodes N`, what it does, the section of the help it stands in."""

    spec: str
    text: str
    section: str

    @property
    def flag(self) -> str:
        """Return the name that a command line needs: of `-o, --out FILE`, `--out`; of an argument, all of it."""
        flags = re.findall(r"(?:(?<=^)|(?<= ))--?[\w-]+", self.spec)
        return next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else self.spec)

    @property
    def said(self) -> tuple[str, str]:
        """Return what must be alike for two commands to have the same option."""
        return self.spec, self.text


def programs() -> dict[str, Callable[[list[str]], object]]:
    """Return what runs each program."""
    from ddpexec.__main__ import main
    from ddpsim.cli.app import run

    return {"ddpsim": run, "python -m ddpexec": main}


@functools.cache
def help_of(program: str, *words: str) -> str:
    """Return what `program WORDS --help` prints."""
    text = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="80")
    with wide, contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
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


def split(text: str) -> tuple[str, list[Entry]]:
    """Return what a command's help says before its options, and its arguments and options in order.

    `--help`, which every command has, is left out.
    """
    first = re.search(r"^\w[\w ]*:$", text, re.MULTILINE)
    if first is None:
        return text, []
    entries: list[list[str]] = []
    section = ""
    for line in text[first.start() :].splitlines():
        if re.match(r"\w", line):
            section = line.rstrip(":")
        elif re.match(r"  \S", line):
            spec, _, said = line.strip().partition("  ")
            entries.append([spec, " ".join(said.split()), section])
        elif line.strip():
            entries[-1][1] = _joined(entries[-1][1], " ".join(line.split()))
    found = [Entry(*each) for each in entries]
    return text[: first.start()].rstrip(), [each for each in found if each.flag != "--help"]


def _joined(before: str, line: str) -> str:
    """Return two lines as one: help is broken at spaces, and behind the hyphens of words."""
    between = "" if re.search(r"\S-$", before) else " "
    return f"{before}{between}{line}".strip()


def shared_options(helps: Mapping[str, list[Entry]]) -> dict[str, Entry]:
    """Return by their flags the options of which `FEWEST` commands or more say the same.

    Where commands say several things of one flag, that of most commands; the others describe theirs themselves.

    Args:
        helps: entries of each command.
    """
    every = [each for entries in helps.values() for each in entries if each.spec.startswith("-")]
    counts = Counter(each.said for each in every)
    most: dict[str, Entry] = {}
    for each in every:
        if counts[each.said] > (counts[most[each.flag].said] if each.flag in most else FEWEST - 1):
            most[each.flag] = each
    return {flag: replace(each, section=_section(each, every)) for flag, each in most.items()}


def _section(entry: Entry, every: list[Entry]) -> str:
    """Return the section in which most commands that have sections show `entry`."""
    counts = Counter(each.section for each in every if each.said == entry.said and each.section in tuple(Section))
    return counts.most_common(1)[0][0] if counts else OTHER


def shown(entries: list[Entry]) -> str:
    """Return entries as help shows them, under the names of their sections."""
    lines: list[str] = []
    for section in dict.fromkeys(each.section for each in entries):
        lines += ["", f"{section}:"]
        for each in (entry for entry in entries if entry.section == section):
            fits = len(each.spec) <= 30
            lines += [] if fits else [f"  {each.spec}"]
            before = f"  {each.spec:32}" if fits else " " * 34
            lines += textwrap.wrap(
                each.text, 100, initial_indent=before, subsequent_indent=" " * 34, break_on_hyphens=False
            )
    return "\n".join(lines).strip("\n")


def command_page(name: str, head: str, entries: list[Entry], shared: Mapping[str, Entry]) -> str:
    """Return a command's part of the page: its usage, the options that it alone has, and the names of the others."""
    common = [each.flag for each in entries if each.flag in shared and shared[each.flag].said == each.said]
    own = [each for each in entries if each.flag not in common]
    usage, _, said = head.partition("\n\n")
    said = said if usage == f"Usage: {name} [OPTIONS]" else head
    block = "\n\n".join(part for part in (said, shown(own)) if part)
    named = ", ".join(_named(common, {each.flag for each in own}, shared))
    lines = textwrap.fill(f"Shared: {named}.", 120, break_on_hyphens=False)
    return f"## {name}\n\n```text\n{block}\n```\n" + (f"\n{lines}\n" if common else "")


def _named(common: Sequence[str], own: Collection[str], shared: Mapping[str, Entry]) -> Iterator[str]:
    """Yield the names of shared options, and a section's in one where a command has most of it.

    Args:
        common: flags of the command that are described with the shared ones.
        own: flags that it describes itself, and so are no exceptions of a section.
    """
    for section in (*Section, OTHER):
        every = [flag for flag, each in shared.items() if each.section == section]
        here = [flag for flag in every if flag in common]
        lacking = [f"`{flag}`" for flag in every if flag not in common and flag not in own]
        if len(here) > 2 * len(lacking) + 2:
            yield f"all of *{section}*" + (f" but {' and '.join(lacking)}" if lacking else "")
        else:
            yield from (f"`{flag}`" for flag in here)


def exclusions() -> str:
    """Return what excludes what: a line for each kind of job or command, its options one after the other."""
    lines = []
    for of, rows in TABLE.items():
        said: dict[str, list[str]] = {}
        for row in rows:
            needed = f"only beside {_as_text(row.needs)}" if row.needs else ""
            refused = f"not beside {', '.join(map(_as_text, row.refuses))}" if row.refuses else ""
            said.setdefault(" and ".join(filter(None, [needed, refused])), []).append(_as_text(row.option))
        each = "; ".join(f"{', '.join(dict.fromkeys(options))} {rest}" for rest, options in said.items())
        lines.append(textwrap.fill(f"- **{of}**: {each}.", 120, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join([*lines, ""])


def columns() -> str:
    """Return the names of the columns that the page of formats describes, and a table of the others.

    A name stands alone where its heading says no more. The same part of a step and of a micro-batch have one heading,
    and stand together.
    """
    described = {word for code in re.findall(r"`([^`\n]+)`", FORMATS.read_text()) for word in re.findall(r"\w+", code)}
    told: dict[str, list[str]] = {}
    table = ["| name | heading | meaning |", "|---|---|---|"]
    before = ""
    for each in COLUMNS.values():
        heading = heading_of(each.name)
        words = {*heading.lower().replace("-", " ").split()} - {"ms", "mib", "gib", "gb/s"}
        what = re.sub("^The same", before, each.what)
        before = each.what.rstrip(".")
        if described & {each.name, each.name.removeprefix("step_")}:
            told.setdefault("" if words <= {*each.name.split("_")} else heading, []).append(f"`{each.name}`")
        else:
            table.append(f"| `{each.name}` | {heading} | {what} |")
    named = [f"{', '.join(names)} ({heading})" if heading else ", ".join(names) for heading, names in told.items()]
    lines = textwrap.fill(f"{'; '.join(named)}.", 120, break_on_hyphens=False)
    return COLUMNS_HEAD.format(told=lines, table="\n".join(table)) + "\n"


def _as_text(option: str) -> str:
    """Return an option as a page has it: `backend!nccl,rccl` is `backend` other than nccl, rccl."""
    name, _, others = option.partition("!")
    shown = _PHRASES.get(name, f"`{name}`")
    return f"{shown} other than {others.replace(',', ', ')}" if others else shown


_PHRASES = {
    "fully_sharded": "`scheme` that torch's `fully_shard` carries out",
    "replicated": "`scheme=dataparallel`",
    "scheduled": "`scheme`, `overlap=off`",
    "served": "`scheme` with servers",
    "all_": "`all`",
    "from_": "`from`",
    "caps": "a bucket cap",
}


def reference() -> str:
    """Return the page."""
    every = [(program, *words) for program in programs() for words in [(), *commands(program)]]
    helps = {" ".join(words): help_of(*words) for words in every}
    parts = {name: split(text.split("\n\nCommands:\n")[0]) for name, text in helps.items()}
    shared = shared_options({name: entries for name, (_, entries) in parts.items()})
    ordered = [each for section in (*Section, OTHER) for each in shared.values() if each.section == section]
    pages = [command_page(name, *parts[name], shared) for name in helps]
    together = f"## Options that exclude each other\n\n{TOGETHER}\n{exclusions()}"
    together += f"\n## Columns\n\n{columns()}"
    return "\n".join([HEAD, f"## {SHARED}\n\n```text\n{shown(ordered)}\n```\n", together, *pages])


if __name__ == "__main__":
    TARGET.write_text(reference())
