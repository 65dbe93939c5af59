"""Our DDP on one rank that has a GPU for itself, over NCCL: the same bits as torch's, and a host that never waits."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.gpu.places import Place, no_waits, sync_debug_mode
from tests.gpu.training import STEPS, WARM_UP, Training, same


def trained(rank: int, device: torch.device, view: bool) -> dict[str, bool]:
    """Train ours, ours observed, torch's and the model alone; return what agrees with the model alone."""
    options = {"gradient_as_bucket_view": view}
    trainings = {
        "none": Training("none", device, rank, {}),
        "torch": Training("torch", device, rank, options),
        "ddpexec": Training("ddpexec", device, rank, options),
        "ddpexec, observed": Training("ddpexec", device, rank, options, observed=True),
    }
    found = {}
    for name, training in trainings.items():
        for _ in range(WARM_UP):
            training.step()
        with no_waits(device):
            if training.observed:
                training.module.observer.begin(0, synced=True)
            for _ in range(STEPS):
                training.step()
        found[name] = same(training.state(), trainings["none"].state())
        found[f"{name}: ahead"] = training.goes_ahead()
    observer = trainings["ddpexec, observed"].module.observer
    found["moments taken"] = len(observer.hooks) == len(trainings["none"].parameters)
    return found


@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_twenty_steps_are_torchs_bit_for_bit_and_the_host_never_waits(place: Place, view: bool) -> None:
    found = place.run(trained, view)[0]
    assert all(found.values()), found


def searched(rank: int, device: torch.device) -> tuple[bool, int]:
    """Search for unused parameters, first where there are none, then where there are.

    Returns:
        Whether the host goes ahead of the device in the first case, and how often it waited in the second.
    """
    options = {"find_unused_parameters": True}
    training = Training("ddpexec", device, rank, options)
    for _ in range(WARM_UP):
        training.step()
    with no_waits(device):
        for _ in range(STEPS):
            training.step()
    return training.goes_ahead(), waits(Training("ddpexec", device, rank, options, branch=False))


def waits(training: Training) -> int:
    """Return how often the host waited for an operator."""
    for _ in range(WARM_UP):
        training.step()
    with warnings.catch_warnings(record=True) as caught, sync_debug_mode(training.device, "warn"):
        warnings.simplefilter("always")
        for _ in range(STEPS):
            training.step()
    return sum("synchronizing" in str(warning.message) for warning in caught)


def test_the_search_for_unused_parameters_waits_only_to_ask_what_others_used(place: Place) -> None:
    ahead, waited = place.run(searched)[0]
    assert ahead
    assert waited <= STEPS, "torch's reducer reads the bitmap once a step too, where this rank left something out"


def caught(rank: int, device: torch.device) -> list[str]:
    """Return which ways of waiting `no_waits` lets pass."""
    one = torch.ones(1, device=device)
    ways = {
        "item": one.item,
        "cpu": one.cpu,
        "copy": lambda: torch.ones(1000).to(device),
        "synchronize": torch.cuda.synchronize,
        "event": lambda: torch.cuda.Event().synchronize(),
    }
    if device.type == "cpu":
        ways = {"synchronize": torch.cuda.synchronize}
    passed = []
    for name, wait in ways.items():
        try:
            with no_waits(device):
                wait()
        except (RuntimeError, AssertionError):
            continue
        passed.append(name)
    return passed


def test_what_makes_the_host_wait_is_caught(place: Place) -> None:
    assert place.run(caught) == [[]]
