"""What messages a process sends from Python: operation, bytes, ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

OPERATIONS = (
    "allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base",
    "alltoall", "alltoall_base", "gather", "scatter", "send", "recv",
)  # fmt: skip
"""Methods of a process group by which messages are sent."""


@contextmanager
def spied() -> Iterator[list[tuple[int, str]]]:
    """Note each message that this process sends from Python, with the thread that did."""
    seen: list[tuple[int, str]] = []
    with ExitStack() as stack:
        for name in OPERATIONS:
            send = getattr(dist.ProcessGroup, name)

            def noted(group: Any, *given: Any, _send: Any = send, _name: str = name, **more: Any) -> Any:
                size = sum(each.numel() * each.element_size() for each in _tensors(given[0] if given else ()))
                seen.append((threading.get_ident(), f"{_name} {size} B, {group.size()} ranks"))
                return _send(group, *given, **more)

            stack.enter_context(mock.patch.object(dist.ProcessGroup, name, noted))
        yield seen


def in_order(seen: list[tuple[int, str]], *, fixed: bool) -> list[str]:
    """Return the messages as they were sent, by one thread; sorted where threads sent at once.

    Args:
        fixed: whether the queue fixes their order; PowerSGD sends its second half when the first has ended.
    """
    said = [each for _, each in seen]
    return said if fixed and len({thread for thread, _ in seen}) == 1 else sorted(said)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _tensors(each)
