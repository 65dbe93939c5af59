"""A module's parameters as the policy sees them, what ranks must agree on before the first step, and its buffers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ddpexec.errors import ModelMismatchError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan, Parameter
from ddpsim.bucketing.assign import FrozenParameter

BROADCAST_BYTES = 250 << 20
"""Bytes of one coalesced piece of the construction broadcast, as torch's."""


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """The parameters that are reduced, in registration order.

    Attributes:
        tensors: the parameters themselves.
        policy: what the bucketing policy needs of each.
        frozen_tensors, frozen: those that take no gradient, likewise.
    """

    tensors: tuple[nn.Parameter, ...]
    policy: tuple[Parameter, ...]
    frozen_tensors: tuple[nn.Parameter, ...] = ()
    frozen: tuple[FrozenParameter, ...] = ()

    @property
    def all_policy(self) -> tuple[Parameter, ...]:
        """What the policy needs of each, and behind them the frozen ones."""
        return (*self.policy, *self.frozen)

    def reduced(self, unit: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of `unit` that take a gradient."""
        return tuple(index for index in unit if index < len(self.policy))

    @property
    def names(self) -> list[str]:
        """Dotted names."""
        return [parameter.name for parameter in self.policy]

    @property
    def devices(self) -> list[torch.device]:
        """The distinct devices, in order of first sight."""
        return list(dict.fromkeys(tensor.device for tensor in self.tensors))

    def describe(self, index: int, rank: int) -> str:
        """Return what errors of `rank` call a parameter."""
        return f"parameter {index} ({self.policy[index].name}) of rank {rank}"


def collect(module: nn.Module, ignored: Collection[str] = ()) -> ModelParameters:
    """Return the parameters of `module`: those that need a gradient, in the order of torch's DDP, and the frozen ones.

    Modules in order, each one's own parameters, shared ones once. A gradient is expected sparse where the module is
    an embedding with `sparse=True`.
    """
    tensors: dict[nn.Parameter, tuple[str, bool]] = {}
    frozen: dict[nn.Parameter, FrozenParameter] = {}
    for prefix, submodule in module.named_modules():
        sparse = isinstance(submodule, (nn.Embedding, nn.EmbeddingBag)) and submodule.sparse
        for name, tensor in submodule.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            # torch matches the ignored names of root parameters with a leading dot; both forms are taken here.
            if tensor.requires_grad and full not in ignored and f"{prefix}.{name}" not in ignored:
                tensors.setdefault(tensor, (full, sparse))
            elif not tensor.requires_grad:
                shown = _describe(tensor, full, sparse=False)
                place = FrozenParameter(shown.name, shown.shape, shown.dtype, shown.device, before=len(tensors))
                frozen.setdefault(tensor, place)
    policy = tuple(_describe(tensor, name, sparse) for tensor, (name, sparse) in tensors.items())
    return ModelParameters(tuple(tensors), policy, tuple(frozen), tuple(frozen.values()))


def verify(parameters: ModelParameters, communicator: Communicator, device: torch.device) -> None:
    """Check that every rank has the same parameters: number, shapes, strides and dtypes.

    One small collective where they agree; where they do not, every rank raises the same error.

    Raises:
        ModelMismatchError: names the first rank that differs from rank 0, and its first parameter that does.
    """
    rows = [
        f"{described.dtype} of shape {described.shape}, strides {tensor.stride()}"
        for tensor, described in zip(parameters.tensors, parameters.policy, strict=True)
    ]
    agree(rows, [f"parameter {i} ({name})" for i, name in enumerate(parameters.names)], communicator, device)


def verify_plan(plan: BucketPlan, communicator: Communicator, device: torch.device) -> None:
    """Check that every rank has the same buckets.

    Raises:
        ModelMismatchError: names the first rank that differs from rank 0, and its first bucket that does.
    """
    rows = [f"parameters {list(group)}" for group in plan.groups()]
    agree(rows, [f"bucket {number}" for number in range(len(rows))], communicator, device)


def agree(rows: Sequence[str], names: Sequence[str], communicator: Communicator, device: torch.device) -> None:
    """Raise on every rank unless every rank has the same `rows`, each of which belongs to one of `names`."""
    if communicator.world_size == 1 or _all_equal(rows, communicator, device):
        return
    with name_lost_ranks(communicator, "the exchange of what ranks differ in"):
        gathered = communicator.gather_objects((list(rows), list(names)), device)
    _raise_difference(gathered)


def broadcast_state(
    module: nn.Module, communicator: Communicator, ignored: Collection[str], *, buffers: bool, source: int = 0
) -> None:
    """Overwrite parameters, and with `buffers` buffers too, with rank `source`'s, coalesced, two pieces in flight."""
    state = [parameter.detach() for name, parameter in module.named_parameters() if name not in ignored]
    if buffers:
        state += [buffer.detach() for name, buffer in module.named_buffers() if name not in ignored]
    broadcast(state, communicator, source)


def broadcast(tensors: Sequence[Tensor], communicator: Communicator, source: int = 0) -> None:
    """Broadcast `tensors` in place from rank `source`, coalesced."""
    if tensors:
        with name_lost_ranks(communicator, "the broadcast of parameters or buffers"):
            dist._broadcast_coalesced(communicator.main, list(tensors), BROADCAST_BYTES, source)  # type: ignore[attr-defined]


def _describe(tensor: Tensor, name: str, sparse: bool) -> Parameter:
    return Parameter(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device), sparse)


def _all_equal(rows: Sequence[str], communicator: Communicator, device: torch.device) -> bool:
    digest = hashlib.sha256(json.dumps(rows).encode()).digest()
    halves = [int.from_bytes(digest[start : start + 8], "little", signed=True) for start in (0, 8)]
    return all(row == halves for row in communicator.introduce(device, *halves).tolist())


def _raise_difference(gathered: Sequence[tuple[list[str], list[str]]]) -> None:
    rows, names = gathered[0]
    kind = names[0].split()[0] if names else "parameter"
    for rank, (their_rows, their_names) in enumerate(gathered):
        if len(their_rows) != len(rows):
            extra = sorted(set(their_names) ^ set(names))
            raise ModelMismatchError(
                f"DDP expects same model across all ranks, but Rank 0 has {len(rows)} {_PLURAL[kind]}, while rank "
                f"{rank} has inconsistent {len(their_rows)} {_PLURAL[kind]}; on one of them only: "
                + ", ".join(extra[:5]),
                remedy=_REMEDY[kind],
            )
        for row, their_row, name, their_name in zip(rows, their_rows, names, their_names, strict=True):
            if row != their_row:
                raise ModelMismatchError(
                    f"{their_name} of rank {rank} is {their_row}; on rank 0 {name} is {row}", remedy=_REMEDY[kind]
                )


_PLURAL = {"parameter": "params", "bucket": "buckets", "message": "messages"}
_REMEDY = {
    "parameter": "build the same model on every rank",
    "bucket": "give every rank the same plan and caps",
    "message": "give every rank the same scheme, caps and times",
}


BufferHook = Callable[[Any, dict[str, Tensor]], Any]


class BufferSynchroniser:
    """Broadcast the buffers of `module`, which may be reassigned between calls but not moved to other modules.

    The walk over the modules is made once: it would otherwise cost about a millisecond a step for a ResNet-50.

    Attributes:
        hook: with its state, `hook(state, named buffers)` synchronises instead; it may return futures.
        after_forward: whether it does so after forward.
    """

    def __init__(self, module: nn.Module, communicator: Communicator, ignored: Collection[str]) -> None:
        self._communicator = communicator
        self._ignored = frozenset(ignored)
        self._owners = list(module.named_modules())
        self.hook: tuple[BufferHook, Any] | None = None
        self.after_forward = False

    def list_named(self) -> dict[str, Tensor]:
        """Return the buffers by dotted name, each once, those ignored left out."""
        by_name: dict[str, Tensor] = {}
        seen: set[int] = set()
        for prefix, owner in self._owners:
            for name, buffer in owner._buffers.items():
                full = f"{prefix}.{name}" if prefix else name
                if buffer is not None and id(buffer) not in seen and full not in self._ignored:
                    seen.add(id(buffer))
                    by_name[full] = buffer
        return by_name

    def synchronise(self, source: int = 0, observer: Observer | None = None) -> list[torch.futures.Future[Any]]:
        """Overwrite the buffers with rank `source`'s, or call the hook; return its futures.

        Autograd does not count this as a modification. Where there are buffers, `observer` notes what it took.
        """
        begin = observer.now() if observer is not None else None
        named = self.list_named()
        buffers = tuple(named.values())
        if not buffers or self._communicator.noop:
            return []
        with torch.no_grad(), _unsafe_preserve_version_counter(buffers):
            if self.hook is not None:
                hook, state = self.hook
                futures = list(hook(state, named) or ())
            else:
                futures = []
                broadcast(buffers, self._communicator, source)
        if observer is not None:
            observer.buffers(begin)
        return futures
