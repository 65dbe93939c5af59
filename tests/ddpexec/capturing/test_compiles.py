"""Captures and estimates of steps that torch.compile compiles say so."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from ddpexec.capturing.capture import Capture, CaptureSettings  # noqa: E402
from ddpexec.capturing.compiles import compiled  # noqa: E402
from ddpexec.capturing.estimate import estimate_module  # noqa: E402


def captured(module: nn.Module, call: Any) -> object:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with Capture(module, settings=CaptureSettings(warm_up=1, iterations=2)) as capture:
        while not capture.done:
            optimizer.zero_grad()
            call(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            capture.step()
    assert capture.workload is not None
    return capture.workload.provenance.get("compiled")


def test_a_compiled_step_is_known_by_its_module_or_by_the_graphs_it_makes() -> None:
    torch._dynamo.reset()
    plain = nn.Linear(3, 3)
    assert captured(plain, plain) is None
    assert captured(plain, torch.compile(lambda x: plain(x), backend="eager")) is True
    inside = nn.Sequential(nn.Linear(3, 3))
    inside[0].compile(backend="eager")
    assert captured(inside, inside) is True
    assert compiled(torch.compile(plain, backend="eager"))


def test_an_estimate_counts_operators_and_remembers_that_they_are_compiled() -> None:
    module = nn.Linear(3, 3)
    module.compile(backend="eager")
    found = estimate_module(module, torch.ones(4, 3), "V100")
    assert found.provenance["compiled"] is True
    assert "compiled" not in estimate_module(nn.Linear(3, 3), torch.ones(4, 3), "V100").provenance
