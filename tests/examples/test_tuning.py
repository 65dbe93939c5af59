from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpsim.explaining.tuned import read_tuning
from tests.ddpexec.groups import ranks

LOOPS = Path(__file__).parents[2] / "examples" / "tuning" / "loops.py"
STEPS = 110


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_loops", LOOPS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(rank: int, name: str, folder: str) -> bool:
    """Return whether the loop ends with the weights of one that is not tuned."""
    loops = example()
    loops.STEPS, loops.OUT = STEPS, folder
    tuned = loops.LOOPS[name]()
    plain = torch.nn.parallel.DistributedDataParallel(loops.net())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for batch in loops.batches():
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        optimizer.step()
    return all(map(torch.equal, tuned.parameters(), plain.parameters()))


@pytest.mark.parametrize("name", ["plain", "lightning", "accelerate", "scheme"])
def test_each_loop_is_tuned_and_ends_with_the_bits_of_one_that_is_not(name: str, tmp_path: Path) -> None:
    assert ranks.run(2, trained, name, str(tmp_path)) == [True, True]
    (only,) = read_tuning(tmp_path).rounds
    assert 0 < only.steps <= 100
    ours = 'ScheduledDataParallel(model, "ddp", make_optimizer, learn=3)'
    assert only.present == (ours if name == "scheme" else "DistributedDataParallel(model)")
