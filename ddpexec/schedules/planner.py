"""Which schedule a wrapper carries out: its scheme's, of what is known of the job, the same on every rank."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from ddpexec.ddp.parameters import ModelParameters, agree
from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import Communicator
from ddpexec.schedules.chunked import check_no_momentum
from ddpexec.schedules.lanes import CommunicationStream
from ddpexec.schedules.learning import ProbeTimes, arrival_order, with_learned
from ddpexec.schedules.message_memory import keeps_parts
from ddpexec.schedules.refusals import check_mixable
from ddpexec.schedules.rows import check_optimizer
from ddpexec.schedules.updates import MakeOptimizer
from ddpsim.bucketing import BucketCaps, BucketPlan, rebuilt_plan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.operations import Operation
from ddpsim.schedules import schemes
from ddpsim.schedules.schedule import Schedule, check, message_document
from ddpsim.schedules.scheme import Scheme
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import SchemeInputs


class SchedulePlanner:
    """A planner has a scheme make the schedules of one job: its first, and another of what was learned.

    Args:
        scheme: makes a schedule of a setup.
        model: its parameters, in registration order.
        communicator: of the ranks.
        make_optimizer: makes an optimizer of some parameters; refused where it cannot take sparse gradients as sent.
        caps: of the buckets.
        plan: the buckets instead.
        overlap: whether messages may begin before backward has ended.
        every: of how many iterations the last one sends gradients.
        accumulate: iterations of a step of the optimizer.
        find_unused: whether parameters may have no gradient.
        mixed_precision: torch's, in whose `param_dtype` gradients are sent; None leaves them in their parameters'.

    Raises:
        OptionError: a scheme that others carry out, or `every` and `accumulate` that do not go together.
    """

    def __init__(
        self,
        scheme: Scheme,
        model: ModelParameters,
        communicator: Communicator,
        make_optimizer: MakeOptimizer,
        *,
        caps: BucketCaps,
        plan: BucketPlan | None,
        overlap: bool,
        every: int,
        accumulate: int,
        find_unused: bool,
        mixed_precision: Any = None,
    ) -> None:
        self._find_unused, self._mixed = find_unused, mixed_precision
        self._scheme, self._model, self._communicator = scheme, model, communicator
        self._make_optimizer, self._overlap = make_optimizer, overlap
        self._every, self._accumulate = every, accumulate
        self._given, self._caps = plan, caps
        self.plan = plan or rebuilt_plan(model.policy, caps)
        self.wire: Callable[[Operation, int], float] | None = None
        if scheme.runner not in ("ddpexec", "DataParallel"):
            what, remedy = (
                f"{scheme.runner} trains by it{' here' if scheme.runner == 'nobody' else ''}",
                "use zero1 or zero2, FullySharded for fsdp2 and hsdp, or simulate",
            )
            raise OptionError(what, place=f"scheme={scheme.name}", remedy=remedy)
        if accumulate % every:
            what = f"gradients are sent every {every} iterations, and a step is of {accumulate}"
            raise OptionError(what, place="every", remedy="let `accumulate` be a multiple of `every`")

    @property
    def caps(self) -> BucketCaps:
        """The caps that buckets are made by."""
        return self._caps

    @property
    def fixed(self) -> str | None:
        """Why no other schedule may take the place of this one; None where one may."""
        name = self._scheme.name
        reasons = {
            f"its scheme {name} does more than sum whole gradients for one step": (
                name.partition(":")[0] not in schemes.SAME_SUMS
            ),
            "its buckets are a plan of its own": self._given is not None,
            "it sends nothing before backward has ended (overlap=False)": not self._overlap,
            f"it sends gradients every {self._every} iterations": self._every > 1,
            f"a step is of {self._accumulate} iterations that send gradients": self._accumulate > self._every,
            "mixed_precision lowers its parameters in backward": self._mixed is not None,
            "a gradient of it is sparse": any(each.sparse for each in self._model.policy),
        }
        return next((reason for reason, so in reasons.items() if so), None)

    def other(self, groups: Sequence[Sequence[int]], schedule: Schedule | None) -> tuple[BucketPlan, Schedule]:
        """Return these buckets and their schedule: DDP's, or the one given.

        Raises:
            PlanError: buckets, or messages, that do not hold each parameter once.
        """
        plan = custom_plan(self._model.policy, groups)
        setup = replace(self._setup(), buckets=plan.groups())
        made = schemes.ddp(setup) if schedule is None else schedule
        check(made, setup.parameters, setup.world_size)
        return plan, made

    def take(self, caps: BucketCaps, plan: BucketPlan) -> None:
        """Take it that these buckets are in force."""
        self._caps, self.plan = caps, plan

    def first(self, *, learns: bool) -> Schedule:
        """Return the schedule of the first iterations; while the job learns it is DDP's, which needs no times.

        Raises:
            OptionError: servers, which have no gradients to learn of, or optimizers of flat parts, which have one count
                of steps for all their parameters, where some may have taken fewer while the job learned.
        """
        setup = self._setup()
        own, place = self._made(setup), f"scheme={self._scheme.name}"
        if not learns:
            return own
        if own.sharding.servers:
            what, remedy = "servers take no part in the iterations in which times are learned", "give `learn=0`"
            raise OptionError(what, place=place, remedy=remedy)
        if keeps_parts(own) and self._find_unused:
            what = "flat parts cannot take over steps that some of their parameters were left out of"
            raise OptionError(what, place=place, remedy="give `learn=0`, or no `find_unused_parameters`")
        made = schemes.ddp(setup)
        _check_sparse(made, self._model)
        return made

    def learned(self, learning: ProbeTimes, lane: CommunicationStream) -> Schedule:
        """Return the schedule of what was learned, and of what `lane` takes; every rank calls this.

        Its buckets are made anew, in the order in which gradients came, where none were given.
        """
        setup = with_learned(self._setup(), learning, self._communicator, lane, self._model)
        self.wire = setup.time_s
        if self._given is None:
            self.plan = rebuilt_plan(self._model.policy, self._caps, arrival_order(setup))
        return self._made(replace(setup, buckets=self.plan.groups()))

    def _setup(self) -> SchemeInputs:
        sent = self._model.policy
        if self._mixed is not None:
            sent = tuple(replace(each, dtype=str(self._mixed.param_dtype).removeprefix("torch.")) for each in sent)
        return SchemeInputs(
            parameters=sent,
            buckets=self.plan.groups(),
            world_size=self._communicator.world_size,
            every=self._every,
            accumulate=self._accumulate,
            ranks_per_node=_ranks_per_node(self._communicator.world_size),
            blocking=self._communicator.backend == "gloo",
        )

    def _made(self, setup: SchemeInputs) -> Schedule:
        made = self._scheme.schedule(setup)
        if made.one_process:
            what, remedy = "its ranks are threads of one process", "use torch.nn.DataParallel, or take `ddp`"
            raise OptionError(what, place=f"scheme={made.scheme}", remedy=remedy)
        _check_sparse(made, self._model)
        if any(message.sparse for message in made):
            check_optimizer(self._make_optimizer)
        if any(message.chunks is not None and message.chunks.momentum for message in made):
            check_no_momentum(self._make_optimizer)
        if self._mixed is not None:
            check_mixable(made, self._accumulate, self._mixed)
        return made if self._overlap else without_overlap(made)


def check_agreement(schedule: Schedule, communicator: Communicator, device: torch.device) -> None:
    """Raise on every rank unless all have the same schedule.

    Raises:
        ModelMismatchError: names the first rank that differs from rank 0, and its first message that does.
    """
    outer = None if schedule.outer is None else asdict(schedule.outer)
    common = {"update": schedule.update, "sharding": asdict(schedule.sharding), "outer": outer}
    rows = [json.dumps({**message_document(message), **common}) for message in schedule]
    agree(rows, [f"message {number} ({message.id})" for number, message in enumerate(schedule)], communicator, device)


def _ranks_per_node(world_size: int) -> int:
    """Return the ranks of a node as the launcher says, 1 where it does not or where they do not divide all."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local_size) if local_size.isascii() and local_size.isdigit() else 1
    return ranks if ranks and world_size % ranks == 0 else 1


def _check_sparse(schedule: Schedule, model: ModelParameters) -> None:
    """Raise OptionError where a gradient is sparse that the schedule has dense, or the other way round."""
    carried = {index for message in schedule if message.sparse for index in message.parameters}
    for index, parameter in enumerate(model.policy):
        place = f"parameter {parameter.name}"
        if parameter.sparse and index not in carried:
            remedy = "use `scheme=ddp`, `parallax`, or a dense one"
            raise OptionError("its gradient is sparse", place=place, remedy=remedy)
        if index in carried and not parameter.sparse:
            raise OptionError("its gradient is dense", place=place, remedy="build its embedding with sparse=True")
