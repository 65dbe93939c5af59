"""Budgets of the rooms: what `studies/size.toml` allows each, held against what there is.

A room is a package at the top level of `ddpsim` or `ddpexec`; the modules beside them belong to the room that bears the
package's own name. Budgets only fall: `lower` takes them down to what is there, `move` shifts between two rooms, and a
raise is kept with its reason, so that the file shows what every line more has bought.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Figures = Mapping[str, int]
"""By name: code_lines, files, functions, records, and functions and types that one `predict` runs."""

_HEADING = """\
# What each room may have at most; `python -m studies.size --check` holds it, and says how to change a line.
"""


@dataclass
class Budgets:
    """What is allowed.

    Attributes:
        rooms: by room, by figure.
        start: by figure, what all rooms had together when budgets began.
        raises: what was allowed beyond it, each with `room`, `figure`, `by` and `why`.
    """

    rooms: dict[str, dict[str, int]]
    start: dict[str, int]
    raises: list[dict[str, int | str]] = field(default_factory=list)

    @classmethod
    def begin(cls, rooms: Mapping[str, Figures]) -> Budgets:
        """Return budgets that allow exactly what is there."""
        return cls({room: dict(figures) for room, figures in rooms.items()}, dict(total(rooms)))

    @classmethod
    def read(cls, path: Path) -> Budgets:
        """Read `studies/size.toml`."""
        found = tomllib.loads(path.read_text())
        return cls(found["rooms"], found["start"], found.get("raises", []))

    def write(self, path: Path) -> None:
        """Write them, rooms by name."""
        lines = [_HEADING, _table("start", self.start)]
        lines += [_table(f'rooms."{room}"', self.rooms[room]) for room in sorted(self.rooms)]
        lines += [_table("[raises]", each) for each in self.raises]
        path.write_text("\n".join(lines))

    def excesses(self, rooms: Mapping[str, Figures]) -> Iterator[str]:
        """Yield a line for each figure of `rooms` that is above its budget, and for budgets that rose without a why."""
        for room, figures in sorted(rooms.items()):
            allowed = self.rooms.get(room, {})
            for name, count in figures.items():
                most = allowed.get(name, 0)
                if count > most:
                    yield f"{room}: {name} are {count:,}, and may be {most:,}: {count - most:,} too many"
        for name, count in total(self.rooms).items():
            raised = sum(int(each["by"]) for each in self.raises if each["figure"] == name)
            if count > self.start[name] + raised:
                yield f"size.toml: budgets of {name} are {count:,} together, and may be {self.start[name] + raised:,}"

    def lower(self, rooms: Mapping[str, Figures]) -> None:
        """Take every budget that is larger than what is there down to it; rooms that are gone go."""
        self.rooms = {
            room: {name: min(most, rooms[room].get(name, 0)) for name, most in allowed.items()}
            for room, allowed in self.rooms.items()
            if room in rooms
        }

    def move(self, source: str, target: str, rooms: Mapping[str, Figures]) -> None:
        """Give room `target` what `source` has to spare now, as far as it is short of it: the sum stays."""
        spare = self.rooms.setdefault(source, dict.fromkeys(self.start, 0))
        short = self.rooms.setdefault(target, dict.fromkeys(self.start, 0))
        for name in self.start:
            left = spare[name] - rooms.get(source, {}).get(name, 0)
            lacking = rooms.get(target, {}).get(name, 0) - short[name]
            moved = max(0, min(left, lacking))
            spare[name] -= moved
            short[name] += moved

    def raise_(self, room: str, figure: str, by: int, why: str) -> None:
        """Allow `room` so much more of one figure, and keep the reason."""
        self.rooms.setdefault(room, dict.fromkeys(self.start, 0))[figure] += by
        self.raises.append({"room": room, "figure": figure, "by": by, "why": why})


def total(rooms: Mapping[str, Figures]) -> Figures:
    """Return each figure summed over the rooms."""
    names = dict.fromkeys(name for figures in rooms.values() for name in figures)
    return {name: sum(figures.get(name, 0) for figures in rooms.values()) for name in names}


def _table(name: str, values: Mapping[str, int | str]) -> str:
    """Return one table of TOML."""
    shown = (f"{key} = {_quoted(value) if isinstance(value, str) else value}" for key, value in values.items())
    return "\n".join((f"[{name}]", *shown, ""))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
