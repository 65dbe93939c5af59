"""What makes a schedule: a scheme, and one of anybody's own, by `package.module:function`.

A `Scheme` is a function from a setup to a schedule, with what is known before there is a setup.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ddpsim.collectives.servers import ServerPlaces
from ddpsim.common.errors import InputError
from ddpsim.common.options.own import can_be_imported, convert_exit, import_object
from ddpsim.schedules.schedule import Schedule, check
from ddpsim.schedules.setup import SchemeInputs

if TYPE_CHECKING:
    from ddpsim.schedules.sharded import FullyShard

Make = Callable[[SchemeInputs], Schedule]
Runner = Literal["ddpexec", "DataParallel", "fully_shard", "DeepSpeed"]
"""Who trains by a scheme for real: `ddpexec`'s own carrier of schedules, classes of torch, or DeepSpeed."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme's name, and what makes its schedule.

    Attributes:
        name: as it was asked for: `priority:4MiB`.
        make: from a setup to a schedule.
        steps: of the optimizer, after which what is sent repeats.
        apart: whether ranks send each other nothing in the steps between.
        servers: where they are; None where there are none.
        ranks_meet: as that of its schedules.
        runner: who trains by it for real.
        fully_shard: what is asked of torch's `fully_shard`, where that is the runner.
    """

    name: str
    make: Make
    steps: int = 1
    apart: bool = False
    servers: ServerPlaces | None = None
    ranks_meet: bool = True
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
        self.servers.check(world_size, per_node, f"scheme {self.name.partition(':')[0]!r}")
        return self.servers.trainers(world_size, per_node)

    def schedule(self, setup: SchemeInputs) -> Schedule:
        """Return the schedule of `setup`, checked.

        Raises:
            PlanError: a schedule that cannot be carried out; it names the message or the parameter.
            InputError: a scheme of one's own that raises, returns no schedule, or one whose ranks go alone.
        """
        schedule = self.make(setup)
        if not isinstance(schedule, Schedule):
            what = f"the scheme returned {type(schedule).__name__}, no `ddpsim.schedules.schedule.Schedule`"
            raise InputError(what, place=f"scheme {self.name!r}", remedy="return a schedule")
        if self.ranks_meet and not schedule.ranks_meet:
            what, remedy = "its ranks go on without each other, as of servers alone", "use parameter-server:async"
            raise InputError(what, place=f"scheme {self.name!r}", remedy=remedy)
        schedule = replace(schedule, scheme=self.name)
        check(schedule, setup.parameters, setup.world_size, len(setup.frozen))
        return schedule


def is_own(text: str) -> bool:
    """Return whether `text` names a scheme of one's own: `mine:lazy`, `package.module:lazy`; `mien:4MiB` is a typo."""
    module, colon, _ = text.partition(":")
    package, *inner = module.split(".")
    if not all(name.isidentifier() for name in (package, *inner)):
        return False
    return bool(inner) or (bool(colon) and can_be_imported(module))


def load_own_scheme(path: str) -> Scheme:
    """Return the scheme that the function at `path` makes.

    Raises:
        InputError: nothing that can be imported, or no function.
    """
    place = f"scheme {path!r}"
    try:
        scheme = import_object(path)
    except Exception as error:  # whatever a module of somebody else's raises when it is imported
        what = f"cannot be imported: {type(error).__name__}: {error}"
        raise InputError(what, place=place, remedy="name package.module:function") from error
    if not callable(scheme):
        raise InputError("is no function", place=place, remedy="name a function from a setup to a schedule")
    return Scheme(path, partial(_call_own, scheme, place))


def _call_own(function: Make, place: str, setup: SchemeInputs) -> Schedule:
    """Return what a scheme of one's own makes of `setup`; what it raises says at which of its lines."""
    try:
        with convert_exit(RuntimeError):
            return function(setup)
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        its_file = getattr(getattr(function, "__code__", None), "co_filename", None)
        last = ([frame for frame in frames if frame.filename == its_file] or frames)[-1]
        what = f"raised {type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {error}"
        raise InputError(what, place=place, remedy="mend the scheme") from error
