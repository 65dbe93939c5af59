"""Captures and estimates of steps that torch.compile compiles say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.__main__ import main
from ddpexec.capturing.describe import is_compiled
from ddpexec.capturing.estimate import estimate_module, estimate_step
from ddpsim.workload.fusing import INDUCTOR, INDUCTOR_GRAPHS, CompiledAs
from tests.ddpexec.capturing.gpt2_steps import SMALL, gelu_in_parts, training
from tests.ddpexec.capturing.test_forward_calls import captured as workload_of

NANOGPT = replace(SMALL, vocabulary=50304, flash=False)


def compiled(size: Any, batch: int = 12) -> Any:
    module, step = training(size, batch)
    module.compile()
    return module, step


def captured(module: nn.Module, call: Any) -> object:
    return workload_of(module, call, torch.ones(4, 3)).provenance.get("compiled")


def test_a_compiled_step_is_known_by_its_module_or_by_the_graphs_it_makes() -> None:
    torch._dynamo.reset()
    plain = nn.Linear(3, 3)
    assert captured(plain, plain) is None
    assert captured(plain, torch.compile(lambda x: plain(x), backend="eager")) is True
    inside = nn.Sequential(nn.Linear(3, 3))
    inside[0].compile(backend="eager")
    assert captured(inside, inside) is True
    assert is_compiled(torch.compile(plain, backend="eager"))


def test_an_estimate_counts_operators_and_remembers_that_they_are_compiled() -> None:
    module = nn.Linear(3, 3)
    module.compile(backend="eager")
    found = estimate_module(module, torch.ones(4, 3), "V100")
    assert found.provenance["compiled"] is True
    assert "compiled" not in estimate_module(nn.Linear(3, 3), torch.ones(4, 3), "V100").provenance


class Chain(nn.Module):
    """A product and three pointwise operators behind it, the last of which reads the first one's result again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.linear(x).sin()
        return first.exp() * first


@pytest.mark.parametrize(("mode", "compiler"), [("default", INDUCTOR), ("reduce-overhead", INDUCTOR_GRAPHS)])
def test_an_estimate_of_what_inductor_compiles_is_priced_as_compiled(mode: str, compiler: str) -> None:
    plain, module, x = Chain(), Chain(), torch.ones(1 << 14, 64)
    module.compile(mode=mode)
    eager, found = (estimate_module(each, x, "V100") for each in (plain, module))
    said = CompiledAs.of(found.provenance)
    assert said is not None
    assert said.compiler == compiler
    assert found.operators is not None
    assert eager.operators is not None
    assert [replace(o, fused_bytes=0.0) for o in found.operators.forward] == list(eager.operators.forward)
    tensor = 4.0 * x.numel()
    # sin, exp, multiply, sum of the loss: exp reads sin's first, the product reads exp's, and sin's again
    assert [o.fused_bytes for o in found.operators.forward] == [0, 0, 2 * tensor, 3 * tensor, 2 * tensor]
    assert found.forward.device_s[0] < eager.forward.device_s[0]
    assert found.backward.device_s[0] < eager.backward.device_s[0]
    phases = (eager.forward, eager.backward, eager.optimizer)
    assert said.eager_device_s == pytest.approx(sum(phase.device_s[0] for phase in phases), rel=1e-6)


def test_a_compiled_step_around_a_module_is_seen_as_well() -> None:
    def make() -> Any:
        module = Chain()
        loss = torch.compile(lambda x: module(x).sum())
        return module, lambda: loss(torch.ones(8, 64)).backward()

    found = estimate_step(make, "V100")
    assert found.provenance["compiled"] is True
    assert CompiledAs.of(found.provenance) is not None


@pytest.mark.parametrize(("backend", "said"), [("inductor", "(-"), ("eager", "priced operator by operator")])
def test_the_command_says_how_a_compiled_step_is_priced(
    backend: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import torch\n\ndef make():\n    m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())\n"
    text += (
        f"    m.compile(backend={backend!r})\n    return m, lambda: m(torch.ones(4096, 64)).sin().sum().backward()\n"
    )
    (tmp_path / f"compiled_by_{backend}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["estimate", "--step", f"compiled_by_{backend}:make", "--gpu", "A100", "-o", "w.json"])
    assert exit_.value.code == 0
    assert said in capsys.readouterr().err


def test_a_published_step_gains_what_it_is_priced_to_gain() -> None:
    """nanoGPT's GPT-2, attention written out and GELU scripted, went from about 250 to 135 ms (its README)."""
    said = CompiledAs.of(estimate_step(lambda: compiled(NANOGPT), "A100").provenance)
    assert said is not None
    assert said.device_factor == pytest.approx(250 / 135, rel=0.2)


@pytest.mark.parametrize("size", [SMALL, NANOGPT, replace(SMALL, gelu=gelu_in_parts)], ids=["flash", "plain", "parts"])
def test_a_compiled_estimate_names_the_eager_time_that_an_estimate_of_the_eager_step_has(size: Any) -> None:
    eager = estimate_step(lambda: training(size, 4), "A100")
    said = CompiledAs.of(estimate_step(lambda: compiled(size, 4), "A100").provenance)
    assert said is not None
    phases = (eager.forward, eager.backward, eager.optimizer)
    assert said.eager_device_s == pytest.approx(sum(phase.device_s[0] for phase in phases), rel=1e-6)
    assert said.eager_host_s == pytest.approx(sum(phase.host_s[0] for phase in phases), rel=1e-6)
    assert 1.2 < said.device_factor < 3.0
