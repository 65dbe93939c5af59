"""Messages inside the computation of a step, which goes on when they have ended: of tensor and expert parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.common.operation import Operation


@dataclass(frozen=True, slots=True)
class LayerMessage:
    """A message that layers wait for, and where in forward or backward it is sent.

    Attributes:
        size_bytes: as nccl-tests counts.
        host, device: share of what the host launches, and of what the device works, that is over when it is sent: of
            forward, or in backward of what makes the gradient of `before`, 0 to 1.
        before: registration index of the parameter whose gradient comes next; None in forward.
        operation: what is done with it.
    """

    size_bytes: int
    host: float
    device: float
    before: int | None = None
    operation: Operation = Operation.ALLREDUCE


def forward_of(messages: Sequence[LayerMessage]) -> tuple[LayerMessage, ...]:
    """Return those of forward, in order."""
    return tuple(message for message in messages if message.before is None)


def backward_of(messages: Sequence[LayerMessage]) -> dict[int, tuple[LayerMessage, ...]]:
    """Return those of backward by the parameter whose gradient comes next, in order."""
    by_parameter: dict[int, tuple[LayerMessage, ...]] = {}
    for message in messages:
        if message.before is not None:
            by_parameter[message.before] = (*by_parameter.get(message.before, ()), message)
    return by_parameter


@dataclass(frozen=True, slots=True)
class ModelParallel:
    """A step of which each rank of a group computes a part.

    Attributes:
        ranks: of the group.
        messages: of one iteration, those of forward in order, then those of backward.
    """

    ranks: int
    messages: tuple[LayerMessage, ...]

    @property
    def forward(self) -> tuple[LayerMessage, ...]:
        """Messages of forward, in order."""
        return forward_of(self.messages)

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages of an iteration, as nccl-tests counts them."""
        return sum(message.size_bytes for message in self.messages)

    @property
    def backward(self) -> dict[int, tuple[LayerMessage, ...]]:
        """Messages of backward by the parameter whose gradient comes next, in order."""
        return backward_of(self.messages)


@dataclass(frozen=True, slots=True)
class TensorParallel(ModelParallel):
    """Each rank of a group computes a part of every layer of one batch."""


@dataclass(frozen=True, slots=True)
class ExpertParallel(ModelParallel):
    """Each rank of a group has some of the experts of each mixture, and computes what all ranks send to those.

    Attributes:
        parameters: registration indices of the rank's experts' parameters.
        layers: mixtures of experts.
    """

    parameters: frozenset[int]
    layers: int


@dataclass(frozen=True, slots=True)
class OperatorMessage:
    """A message behind an operator of a phase.

    Attributes:
        after: number of the operator; -1 is before all of them.
        size_bytes: as nccl-tests counts.
        operation: what is done with it.
    """

    after: int
    size_bytes: int
    operation: Operation = Operation.ALLREDUCE


def in_forward(messages: Sequence[OperatorMessage], works_s: Sequence[float]) -> list[LayerMessage]:
    """Return messages of forward where its operators take `works_s`, each launched in the same time."""
    whole_s, count = sum(works_s), len(works_s)
    return [
        LayerMessage(
            each.size_bytes,
            (each.after + 1) / count,
            sum(works_s[: each.after + 1]) / whole_s,
            operation=each.operation,
        )
        for each in messages
    ]


def in_backward(
    messages: Sequence[OperatorMessage], works_s: Sequence[float], gradients: Sequence[Sequence[int]]
) -> list[LayerMessage]:
    """Return messages of backward where its operators take `works_s`.

    Args:
        gradients: by operator, registration indices of the parameters whose gradient is complete when it is.
    """
    ends = [at for at, complete in enumerate(gradients) if complete]
    placed = []
    for each in messages:
        end = next((at for at in ends if at >= each.after), ends[-1])
        begin = max((at + 1 for at in ends if at < end), default=0)
        done, whole_s = works_s[begin : each.after + 1], sum(works_s[begin : end + 1])
        host = min(1.0, (each.after + 1 - begin) / (end + 1 - begin))
        device = min(1.0, sum(done) / whole_s) if whole_s > 0 else 1.0
        placed.append(LayerMessage(each.size_bytes, host, device, gradients[end][0], each.operation))
    return placed
