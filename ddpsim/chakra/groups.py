"""Process groups of a trace: which ranks meet in a collective, and the number that names them in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpsim.schedules.mesh import REPLICA
from ddpsim.schedules.message import WORLD


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of one rank.

    Attributes:
        number: of the group, equal on its ranks and on no others.
        name: that the schedule gives it.
        ranks: that are in it, ascending.
    """

    number: int
    name: str
    ranks: Sequence[int]

    def document(self) -> dict[str, object]:
        """Return the group as torch's execution traces list it."""
        return {
            "pg_name": str(self.number),
            "pg_desc": self.name,
            "ranks": list(self.ranks),
            "group_size": len(self.ranks),
        }


def groups_of(rank: int, sizes: Mapping[str, int], world_size: int) -> dict[str, ProcessGroup]:
    """Return the process groups that `rank` is in, by name.

    Args:
        sizes: ranks of each group beside that of all, as `Schedule.groups` has them: of a `replica` the ranks of one
            place in each shard, of any other so many consecutive ranks.
    """
    found = {WORLD: ProcessGroup(0, WORLD, range(world_size))}
    first = 1
    for name, size in sizes.items():
        count = max(world_size // size, 1)
        if name == REPLICA:
            place, ranks = rank % count, range(rank % count, world_size, count)
        else:
            place, ranks = rank // size, range(rank // size * size, (rank // size + 1) * size)
        found[name] = ProcessGroup(first + place, name, ranks)
        first += count
    return found


def format_groups(groups: Mapping[str, ProcessGroup]) -> str:
    """Return the groups as the inputs of a node `process_group:init`, as torch writes it: a list of one JSON text."""
    return f"['{json.dumps([group.document() for group in groups.values()])}']"
