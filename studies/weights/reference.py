"""Each scheme's definition in plain Python: one process that has all ranks' copies of the model, and no collective.

Where a scheme differs from one copy that takes the batches of all, and the documentation says so, the difference is
made here, with a word on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ddpsim.schedules.named import scheme_named
from studies.weights.cases import OPTIMIZERS, TUNED_DDP, Case
from studies.weights.features import lowered_to
from studies.weights.lossy import Flow, codec_of
from studies.weights.models import loss_of

Gradients = list[Tensor | None]
"""By registration index; None where a rank did not use the parameter."""

FLAT_PARTS = ("zero1", "zero2", "parameter-server")
"""Flat parts of several parameters are updated: what no rank used has a gradient of zero, not none."""
OWN_BUFFERS = ("averaging", "slowmo", "parameter-server", "parallax", "fsdp2", "hsdp")
"""Module buffers are each rank's own after construction."""


class Reference:
    """A reference trains all ranks of a case, one after the other.

    Args:
        case: what is trained.
        groups: the buckets, where what is lost depends on them.
    """

    def __init__(self, case: Case, groups: Sequence[tuple[int, ...]]) -> None:
        scheme = case.scheme.removeprefix("tuned=")
        self.case, self.name = case, scheme.partition(":")[0]
        hooked = self.name.startswith("compression")
        self.by_ddp = hooked or self.name in TUNED_DDP
        self.ranks = case.world if self.by_ddp else scheme_named(scheme).trainers(case.world)
        self.copies = [_Copy(case) for _ in range(self.ranks)]
        self.codec = codec_of(case, groups) if hooked else None
        self.flow = Flow(case.scheme, groups, self.copies[0].tensors) if self.name == "gradientflow" else None
        self.period, self.together, self.outer = _averaging(case, self.ranks)
        self.learning = case.options.get("learn", 0) > 0
        self.begun = self.sent = self.steps = 0
        self.synced = True
        self.active = list(range(self.ranks))
        self.taken = self.name in FLAT_PARTS

    def train(self) -> list[list[list[Tensor]]]:
        """Return by rank the weights after each step that is looked at, and at the end."""
        case = self.case
        found: list[list[list[Tensor]]] = [[] for _ in self.copies]
        for step in range(max(map(case.steps_of, range(case.world)))):
            self.active = [rank for rank in range(self.ranks) if step < case.steps_of(rank)]
            copies = [self.copies[rank] for rank in self.active]
            for copy in copies:
                copy.slow_down(case.rate(step))
            for micro in range(case.micros):
                self._begin(local=case.how == "last" and micro + 1 < case.micros)
                before = [copy.taken() for copy in copies]
                for rank, copy in zip(self.active, copies, strict=True):
                    with copy.lowered():
                        loss_of(copy.model(*copy.inputs(case.batch(step, micro, rank)))).backward()
                self._add_up(copies, before)
            self._step([copy.taken() for copy in copies])
            if case.joins:
                continue
            if case.looks or step + 1 == case.steps:
                for weights, copy in zip(found, self.copies, strict=True):
                    weights.append([tensor.detach().clone() for tensor in copy.tensors])
            if step + 1 == case.resumes:
                for copy in self.copies:
                    copy.forget_zeros()
        if case.joins:  # all get the weights of the highest of the ranks that trained longest
            return [[[tensor.detach().clone() for tensor in self.copies[self.active[-1]].tensors]]] * self.ranks
        return found

    def _begin(self, *, local: bool) -> None:
        """Begin an iteration: learning ends before one that sends and begins a step; rank 0's buffers are taken."""
        case = self.case
        # torch's DDP and ours broadcast before what follows an iteration that sent; schedules before one that
        # sends, of which that behind the last one that is learned from is DDP's still.
        due = self.synced if self.by_ddp else not local
        if due and case.options.get("broadcast_buffers", True) and (self.learning or self.name not in OWN_BUFFERS):
            source = self.copies[self.active[-1] if case.joins else 0]
            for copy in self.copies:
                for buffer, first in zip(copy.model.buffers(), source.model.buffers(), strict=True):
                    buffer.copy_(first)
        whole = case.micros if case.how in ("every", "each") else 1
        if self.learning and self.begun >= case.options["learn"] and not local and self.sent % whole == 0:
            self.learning = False
            if self.outer is not None:
                self.outer.start(self.copies[0].tensors)
        self.begun += 1
        self.sent += not local
        self.synced = not local

    def _add_up(self, copies: Sequence[_Copy], before: Sequence[Gradients]) -> None:
        """Add the gradients of the iterations before to those that came.

        As under DDP, what was divided by all ranks and comes again from those alone that have input is divided again.
        """
        again = self.case.feature == "join" and self.case.how in ("each", "untold")
        share = len(copies) / self.ranks if again else 1.0
        for index in range(len(self.copies[0].tensors)):
            for copy, gradients in zip(copies, before, strict=True):
                tensor, earlier = copy.tensors[index], gradients[index]
                if earlier is not None:
                    earlier = earlier * share
                    tensor.grad = earlier if tensor.grad is None else earlier + tensor.grad

    # ---- a step

    def _step(self, local: Sequence[Gradients]) -> None:
        active = [self.copies[rank] for rank in self.active]
        for copy, gradients in zip(active, self._reduced(local), strict=True):
            copy.step(gradients, self.case, taken=not self.learning and self.taken)
        if self.learning or not self.period:
            return
        self.steps += 1
        if self.steps % self.period == 0:
            self._average()

    def _reduced(self, local: Sequence[Gradients]) -> list[Gradients]:
        """Return by rank the gradients that its optimizer takes."""
        if self.codec is not None:
            return [self.codec.reduced(local)] * self.ranks
        if self.flow is not None and not self.learning:
            return [self.flow.reduced(local)] * self.ranks
        if self.case.linear:
            sums: Gradients = [sum(each) for each in zip(*local, strict=True)]
            return [sums] * self.ranks
        divisor = self.ranks if self.case.feature == "join" else None
        together = self.ranks if self.learning else len(local) if self.case.joins else self.together
        if self.period and together == 1:
            return list(local)
        # Whether a gradient is none is agreed on by all ranks, also where only those of a node are summed.
        used = [any(of is not None for of in each) for each in zip(*local, strict=True)]
        found: list[Gradients] = []
        for first in range(0, len(local), together):
            node = local[first : first + together]
            found += [[_mean(each, divisor) for each in zip(*node, strict=True)]] * together
        flat = not self.learning and self.name in FLAT_PARTS
        filled = self._filled(found)
        return [[each if use or flat else None for each, use in zip(mine, used, strict=True)] for mine in filled]

    def _filled(self, found: Sequence[Gradients]) -> list[list[Tensor]]:
        tensors = self.copies[0].tensors
        zeros = [torch.zeros_like(tensor) for tensor in tensors]
        return [[z if each is None else each for each, z in zip(mine, zeros, strict=True)] for mine in found]

    def _average(self) -> None:
        rates = self.copies[0].optimizer.param_groups[0]["lr"]
        with torch.no_grad():
            means = [sum(t / self.ranks for t in each) for each in zip(*(c.tensors for c in self.copies), strict=True)]
            if self.outer is not None:
                means = self.outer.moved(means, rates)
            for copy in self.copies:
                for tensor, mean in zip(copy.tensors, means, strict=True):
                    tensor.copy_(mean)


class _Copy:
    """One rank's model and optimizer."""

    def __init__(self, case: Case) -> None:
        self.model = case.model(0)
        self.tensors = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer: Any = OPTIMIZERS[case.optimizer](self.tensors)
        self._rate = self.optimizer.param_groups[0]["lr"]
        self._zeros: set[int] = set()
        self._low = lowered_to(case.feature)

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """Compute with weights that are rounded to the dtype of mixed precision, and round the gradients."""
        if self._low is None:
            yield
            return
        whole = [tensor.detach().clone() for tensor in self.model.parameters()]
        with torch.no_grad():
            for tensor in self.model.parameters():
                tensor.copy_(tensor.to(self._low))
        yield
        with torch.no_grad():
            for tensor, value in zip(self.model.parameters(), whole, strict=True):
                tensor.copy_(value)
                if tensor.grad is not None:
                    tensor.grad.copy_(tensor.grad.to(self._low))

    def inputs(self, batch: tuple[Tensor, Tensor, int]) -> tuple[Tensor, Tensor, int]:
        """Return what the model is given, rounded under mixed precision."""
        x, words, number = batch
        return (x if self._low is None else x.to(self._low).to(x.dtype)), words, number

    def slow_down(self, factor: float) -> None:
        self.optimizer.param_groups[0]["lr"] = self._rate * factor

    def forget_zeros(self) -> None:
        """Know no gradients, which are not part of what is saved."""
        self._zeros.clear()

    def taken(self) -> Gradients:
        """Return the gradients that came, and take them away."""
        found: Gradients = []
        for tensor in self.tensors:
            gradient = tensor.grad
            found.append(None if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient)
            tensor.grad = None
        return found

    def step(self, gradients: Gradients, case: Case, *, taken: bool) -> None:
        """Step with `gradients`; where they are `taken` from their parameters, `zero_grad` leaves no zeros behind."""
        for index, (tensor, gradient) in enumerate(zip(self.tensors, gradients, strict=True)):
            tensor.grad = None if gradient is None else gradient.clone()
            if gradient is None and index in self._zeros:
                tensor.grad = torch.zeros_like(tensor)
        if taken or case.to_none:
            self._zeros.clear()
        else:
            self._zeros.update(index for index, tensor in enumerate(self.tensors) if tensor.grad is not None)
        given = [tensor.grad for tensor in self.tensors if tensor.grad is not None]
        if case.clip is not None and given:
            norm = torch.stack([gradient.norm().double() ** 2 for gradient in given]).sum().sqrt()
            for gradient in given:
                gradient.mul_((case.clip / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        for tensor in self.tensors:
            tensor.grad = None


class _Outer:
    """SlowMo's outer step (Wang et al. 2020, algorithm 1)."""

    def __init__(self, momentum: float, rate: float, tensors: Sequence[Tensor]) -> None:
        self._momentum, self._rate = momentum, rate
        self.start(tensors)

    def start(self, tensors: Sequence[Tensor]) -> None:
        self._last = [tensor.detach().clone() for tensor in tensors]
        self._slow = [torch.zeros_like(tensor) for tensor in self._last]

    def moved(self, means: Sequence[Tensor], gamma: float) -> list[Tensor]:
        for place, mean in enumerate(means):
            self._slow[place] = self._momentum * self._slow[place] + (self._last[place] - mean) / gamma
            self._last[place] = self._last[place] - self._rate * gamma * self._slow[place]
        return self._last


def _averaging(case: Case, ranks: int) -> tuple[int, int, _Outer | None]:
    """Return the steps from average to average, how many ranks sum gradients together, and the outer step."""
    name, _, text = case.scheme.partition(":")
    first, *rest = text.split(",")
    options = dict(each.split("=") for each in rest if "=" in each)
    if name == "local-sgd":
        return int(first), int(options.get("ranks", 1)), None
    if name == "slowmo":
        tensors = [p for p in case.model(0).parameters() if p.requires_grad]
        return int(first), 1, _Outer(float(options.get("momentum", 0.5)), float(options.get("rate", 1)), tensors)
    return (int(first), 1, None) if name == "averaging" else (0, ranks, None)


def _mean(gradients: Sequence[Tensor | None], divisor: int | None = None) -> Tensor | None:
    """Return the sum through `divisor`, which is the number of ranks where None."""
    given = [gradient for gradient in gradients if gradient is not None]
    share = 1 / (divisor or len(gradients))
    return sum((gradient * share for gradient in given), torch.zeros_like(given[0])) if given else None
