"""A scheme: a name, what makes its schedule, and what is known of it before there is a setup to make one for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ddpsim.errors import InputError
from ddpsim.schedules.schedule import Schedule, check
from ddpsim.schedules.servers import ServerPlaces
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.sharded import FullyShard

Make = Callable[[SchemeInputs], Schedule]
Runner = Literal["ddpexec", "DataParallel", "fully_shard", "DeepSpeed", "nobody"]
"""Who trains by a scheme for real: `ddpexec`'s own carrier of schedules, classes of torch, DeepSpeed, or nobody."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme is a name and what makes its schedule.

    Attributes:
        name: as it was asked for: `priority:4MiB`.
        make: from a setup to a schedule.
        steps: of the optimizer, after which what is sent repeats.
        apart: whether ranks send each other nothing in the steps between.
        servers: where they are; None where there are none.
        asynchronous: whether each rank goes on without the others.
        runner: who trains by it for real.
        fully_shard: what is asked of torch's `fully_shard`, where that is the runner.
    """

    name: str
    make: Make
    steps: int = 1
    apart: bool = False
    servers: ServerPlaces | None = None
    asynchronous: bool = False
    runner: Runner = "ddpexec"
    fully_shard: FullyShard | None = None

    def trainers(self, world_size: int, per_node: int = 1) -> int:
        """Return how many of the ranks train, the first ones.

        Args:
            per_node: ranks of a node.

        Raises:
            PlanError: servers that leave none, or do not fit on their nodes.
        """
        if self.servers is None:
            return world_size
        self.servers.check(world_size, per_node, self.name.partition(":")[0])
        return self.servers.trainers(world_size, per_node)

    def schedule(self, setup: SchemeInputs) -> Schedule:
        """Return the schedule of `setup`, checked.

        Raises:
            PlanError: a schedule that cannot be carried out; it names the message or the parameter.
            InputError: a scheme of one's own that raises, returns no schedule, or one whose ranks go alone.
        """
        made = self.make(setup)
        if not isinstance(made, Schedule):
            what = f"the scheme returned {type(made).__name__}, no `ddpsim.schedules.schedule.Schedule`"
            raise InputError(what, place=f"scheme {self.name!r}", remedy="return a schedule")
        if made.asynchronous and not self.asynchronous:
            what, remedy = "its ranks go on without each other, as of servers alone", "use parameter-server:async"
            raise InputError(what, place=f"scheme {self.name!r}", remedy=remedy)
        made = replace(made, scheme=self.name)
        check(made, setup.parameters, setup.world_size)
        return made
