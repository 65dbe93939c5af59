"""What a function may leave behind in the process that runs it: seen, named and put back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules import module

ENDING_S = 3.0
"""How long threads that are about to end may take: notes are read for a while after a failure."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
)


def _set_signals(before: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def _set_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _set_clock(before: tuple[Any, ...]) -> None:
    time.perf_counter, time.sleep, time.monotonic = before


def _set_hooks(before: tuple[Any, ...]) -> None:
    for name, held in zip(HOOKS, before, strict=True):
        hooks = getattr(module, name)
        for key in set(hooks) - set(held):
            del hooks[key]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "an environment variable": (lambda: dict(os.environ), _set_environment),
    "another working directory": (os.getcwd, os.chdir),
    "a signal's handler": (lambda: tuple(signal.getsignal(number) for number in SIGNALS), _set_signals),
    "a clock of its own": (lambda: (time.perf_counter, time.sleep, time.monotonic), _set_clock),
    "another default type": (torch.get_default_dtype, torch.set_default_dtype),
    "another gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "another count of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "a hook on every module": (lambda: tuple(tuple(getattr(module, name)) for name in HOOKS), _set_hooks),
    "a profiling function": (sys.getprofile, sys.setprofile),
}
"""What is looked at: how to see it and how to put it back."""


def state() -> dict[str, Any]:
    """Return all that is looked at, as it is now."""
    seen = {name: see() for name, (see, _) in KINDS.items()}
    return {**seen, "threads": set(threading.enumerate()), "group": dist.group.WORLD}


def found(before: dict[str, Any]) -> tuple[str, ...]:
    """Return what is not as it was `before`, in words, and put back what can be."""
    left = []
    for name, (see, put_back) in KINDS.items():
        if see() != before[name]:
            left.append(name)
            put_back(before[name])
    until_s = time.monotonic() + ENDING_S
    while (more := _others(before["threads"])) and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)
    if dist.group.WORLD is not before["group"]:
        left.append("no process group, or another")
    return (*left, *(f"the thread {thread.name}" for thread in more))


def _others(before: set[threading.Thread]) -> set[threading.Thread]:
    return set(threading.enumerate()) - before
