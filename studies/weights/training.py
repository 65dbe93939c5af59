"""What one rank does in a case: it trains by a scheme, for real, and returns its weights."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp import flat
from ddpexec.ddp.compression import hook_for, schemes
from ddpexec.ddp.fully_sharded import FullySharded
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.tuning import tuner
from ddpexec.tuning.observation import Observed
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.ranking import Candidate, CapRanking
from ddpexec.tuning.switching import PlanSwitch
from ddpexec.tuning.tuned import tuned
from ddpsim.common.errors import InputError
from studies.weights.cases import HOOKS, OPTIMIZERS, TUNED_DDP, TUNED_STEPS, UNITS, Case, Pick
from studies.weights.features import HOOKS as COMM_HOOKS
from studies.weights.features import mixed_precision
from studies.weights.lossy import PowerSGD
from studies.weights.models import loss_of
from tests.ddpexec.tuning.test_tuner import AtOnce

Weights = list[Tensor]


@dataclass
class Outcome:
    """What a rank says of a case.

    Attributes:
        refused: why it could not be constructed; None where it was.
        weights: after each step that was looked at, and at the end; none of a rank that serves.
        groups: the buckets, as the last iteration had them.
        error: what was raised after construction.
        expected: the reference's, by rank, on rank 0 alone.
        switches: how often a tuner put another plan in force.
    """

    refused: str | None = None
    weights: list[Weights] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    error: str | None = None
    expected: list[list[Weights]] | None = None
    switches: int = 0


def trained(case: Case, rank: int) -> Outcome:
    """Return how `rank` ends `case`."""
    warnings.simplefilter("ignore")
    first = mock.patch.object(schemes, "START_ITERATION", PowerSGD.FIRST)
    with mock.patch.object(flat, "EAGER_BYTES", case.eager_bytes), first:
        try:
            run = _run_of(case, rank)
        except (InputError, ValueError) as error:
            return Outcome(refused=str(error))
        tuned: AbstractContextManager[list[object]] = nullcontext([])
        if case.family == "tuned":
            tuned = tuning(case, run.made, run.optimizer)
        with tuned as switched:
            weights = run.train()
        return Outcome(weights=weights, groups=run.groups(), switches=len(switched))


@contextmanager
def tuning(case: Case, made: Any, optimizer: Any) -> Iterator[list[object]]:
    """Tune while plans of any buckets and schemes are predicted to gain; yields what is put in force, in order.

    A tuner that gives up ends the training, which no user's does.
    """
    switched: list[object] = []

    class Likely(AtOnce):
        def worth(self, found: CapRanking) -> tuple[Candidate, ...]:
            plans = Pick(case.seed).sample([each.plan for each in found.candidates], len(found.candidates))
            return tuple(Candidate(each, found.step_s, 0.5, 0.4, 0.6) for each in plans)

        def ask(self, observed: Observed) -> None:
            try:
                super().ask(observed)
            except InputError as error:  # as of `priority`, which is not predicted where parameters may be unused
                self._found = str(error)

    class Counting(PlanSwitch):
        def use(self, plan: TrialPlan) -> int:
            if plan.key != self._now.key:
                switched.append(plan)
            return super().use(plan)

    put = mock.patch.multiple(tuner, PredictingProcess=Likely, PlanSwitch=Counting)
    with put, warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.filterwarnings("error", message="ddpexec.tuned stopped")
        with tuned(made, optimizer, steps=TUNED_STEPS - 5):
            yield switched


def _run_of(case: Case, rank: int) -> _Run:
    if case.family in UNITS:
        return _Sharded(case, rank)
    by_ddp = case.family in HOOKS or case.scheme.removeprefix("tuned=") in TUNED_DDP
    return _Hooked(case, rank) if by_ddp else _Scheduled(case, rank)


class _Run:
    """A training loop around what a case trains with."""

    made: Any
    optimizer: Any

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank = case, rank

    def train(self) -> list[Weights]:
        """Return the weights after each step that is looked at, and at the end."""
        case, found = self.case, []
        rate = self.optimizer.param_groups[0]["lr"]
        steps = case.steps_of(self.rank)
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = rate * case.rate(step)
            for micro in range(case.micros):
                local = case.how == "last" and micro + 1 < case.micros
                x, words, number = case.batch(step, micro, self.rank)
                with self.made.no_sync() if local else nullcontext():
                    loss_of(self.made(x, words, number)).backward()
            if case.clip is not None:
                self.made.clip_grad_norm_(case.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=case.to_none)
            if case.looks or (step + 1 == steps and not case.joins):
                found.append(self.weights())
            if step + 1 == case.resumes:
                self.resume()
        return found

    def resume(self) -> None:
        """Save all state, and go on with a wrapper made anew."""

    def weights(self) -> Weights:
        return [p.detach().clone() for p in self.made.module.parameters() if p.requires_grad]

    def groups(self) -> list[tuple[int, ...]]:
        return []


class _Scheduled(_Run):
    def __init__(self, case: Case, rank: int) -> None:
        super().__init__(case, rank)
        self._make(rank)
        by_initial = case.feature == "join"
        self._uneven: AbstractContextManager[Any] = (
            self.made.join(divide_by_initial_world_size=by_initial) if case.joins else nullcontext()
        )

    def _make(self, seed: int) -> None:
        case, options = self.case, dict(self.case.options)
        options["mixed_precision"] = mixed_precision(case.feature)
        module, scheme = case.model(seed), case.scheme.removeprefix("tuned=")
        self.made = ScheduledDataParallel(module, scheme, OPTIMIZERS[case.optimizer], **options)
        self.optimizer = self.made.optimizer
        if case.feature in COMM_HOOKS:
            self.made.register_comm_hook(None, COMM_HOOKS[case.feature])

    def resume(self) -> None:
        last, parts = self.made, self.made.schedule.sharding.optimizer > 1
        module, kept = copy.deepcopy(last.module.state_dict()), last.scheme_state_dict()
        optimizer = copy.deepcopy(last.optimizer.shard_state_dict() if parts else last.optimizer.state_dict())
        self._make(self.rank + 5)
        self.made.module.load_state_dict(module)
        (self.optimizer.load_shard_state_dict if parts else self.optimizer.load_state_dict)(optimizer)
        self.made.load_scheme_state_dict(kept)

    def train(self) -> list[Weights]:
        servers = self.made.schedule.sharding.servers
        trainers = list(range(dist.get_world_size() - servers))
        # Every rank makes one, for torch names the next groups by how many a rank has.
        mine = [self.rank] if self.made.serves else trainers
        own = dist.new_group(mine, use_local_synchronization=True) if self.case.linear else None
        if self.made.serves:
            self.made.serve()
            return []
        if own is not None:
            return self._alone(own)
        with self._uneven:
            found = super().train()
        if self.case.joins:
            found.append(self.weights())
        self.made.end()
        return found

    def _alone(self, own: dist.ProcessGroup) -> list[Weights]:
        """Train without the others, then let a step of no gradient bring what all of them have added."""
        super().train()
        dist.barrier(own)
        x, words, number = self.case.batch(0, 0, self.rank)
        for _ in range(self.case.options.get("every", 1)):
            (loss_of(self.made(x, words, number)) * 0).backward()
        self.optimizer.step()
        found = [self.weights()]
        self.made.end()
        return found

    def weights(self) -> Weights:
        self.made.complete()
        return super().weights()

    def groups(self) -> list[tuple[int, ...]]:
        groups: list[tuple[int, ...]] = self.made.plan.groups()
        return groups


class _Hooked(_Run):
    def __init__(self, case: Case, rank: int) -> None:
        super().__init__(case, rank)
        options, caps = dict(case.options), case.options["caps"]
        del options["caps"]
        kind, _, name = case.scheme.partition("=")
        options["bucket_cap_mb"] = caps.bucket_cap_mb
        if name == "torch":
            self.made = nn.parallel.DistributedDataParallel(case.model(rank), **options)
        else:
            options["forward_sync_buffers"] = options.pop("broadcast_buffers")
            options["first_bucket_mb"] = caps.first_bucket_mb
            if kind == "compression":
                options["rebuild"] = "never"
            self.made = DistributedDataParallel(case.model(rank), **options)
        if kind == "compression" and name != "none":
            self.made.register_comm_hook(*hook_for(name))
        self.optimizer = OPTIMIZERS[case.optimizer](self.made.parameters())

    def groups(self) -> list[tuple[int, ...]]:
        groups: list[tuple[int, ...]] = [] if self.case.family == "tuned" else self.made.reducer.plan.groups()
        return groups


class _Sharded(_Run):
    def __init__(self, case: Case, rank: int) -> None:
        super().__init__(case, rank)
        self.made = FullySharded(case.model(rank), case.scheme, OPTIMIZERS[case.optimizer])
        self.optimizer = self.made.optimizer

    def weights(self) -> Weights:
        return [p.detach().full_tensor().clone() for p in self.made.module.parameters() if p.requires_grad]
