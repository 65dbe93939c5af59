"""What a function may leave behind in the process that runs it: seen, named and put back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Not SIGALRM, by which pytest-timeout ends a test."""
OTHERS = ("PYTEST_", "TORCHINDUCTOR_", "TRITON_")
"""How variables begin that pytest sets as a test goes on, and torch's compiler where it is imported."""
HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
)
Kinds = Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]]
"""What is looked at: how to see it and how to put it back."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}


def _set_environment(before: dict[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _set_signals(before: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def _set_clock(before: tuple[Any, ...]) -> None:
    time.perf_counter, time.sleep, time.monotonic = before


KINDS: Kinds = {
    "environment variables": (_environment, _set_environment),
    "another working directory": (os.getcwd, os.chdir),
    "a signal's handler": (lambda: tuple(map(signal.getsignal, SIGNALS)), _set_signals),
    "a clock of its own": (lambda: (time.perf_counter, time.sleep, time.monotonic), _set_clock),
    "a profiling function": (sys.getprofile, sys.setprofile),
}


def torchs(torch: Any) -> Kinds:
    """Return what is looked at where torch is imported."""
    module = torch.nn.modules.module

    def set_hooks(before: tuple[Any, ...]) -> None:
        for name, held in zip(HOOKS, before, strict=True):
            hooks = getattr(module, name)
            for key in set(hooks) - set(held):
                del hooks[key]

    def end_group(before: object) -> None:
        if before is None:
            torch.distributed.destroy_process_group()

    return {
        "another default type": (torch.get_default_dtype, torch.set_default_dtype),
        "another gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "another count of threads": (torch.get_num_threads, torch.set_num_threads),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "a hook on every module": (lambda: tuple(tuple(getattr(module, name)) for name in HOOKS), set_hooks),
        "another process group, or none": (lambda: torch.distributed.group.WORLD, end_group),
    }


def kinds() -> Kinds:
    """Return all that is looked at in this process."""
    torch = sys.modules.get("torch")
    return KINDS if torch is None else {**KINDS, **torchs(torch)}


def _changed(now: Mapping[str, str], before: Mapping[str, str]) -> str:
    return ", ".join(sorted({variable for variable, _ in now.items() ^ before.items()}))


def state() -> dict[str, Any]:
    """Return all that is looked at, as it is now."""
    return {name: see() for name, (see, _) in kinds().items()}


def found(before: Mapping[str, Any]) -> list[str]:
    """Return what is not as it was `before`, in words, and put back what can be."""
    left = []
    for name, (see, put_back) in kinds().items():
        if name in before and (now := see()) != before[name]:
            left.append(f"{name}: {_changed(now, before[name])}" if see is _environment else name)
            put_back(before[name])
    return left
