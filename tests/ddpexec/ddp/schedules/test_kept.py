"""What schemes keep, saved through a file and taken up by new ranks: weights are those of one piece, bit by bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.training import train, wrapped
from tests.ddpexec.groups import ranks

BEFORE, AFTER = 3, 6
SCHEMES = [
    "averaging:4", "slowmo:4", "gradientflow:density=0.25,chunk=16", "parameter-server:servers=1",
    "parameter-server:async",
]  # fmt: skip
"""Three steps in, those that average are between two averages."""


def trained(made: Any, rank: int, first: int, steps: int) -> None:
    """Train some steps, or serve them."""
    if made.serves:
        made.serve()
        return
    train(made, rank, first, steps)
    made.end()


def saved(made: Any) -> bytes:
    file = io.BytesIO()
    shards = made.optimizer.shard_state_dict()
    torch.save((made.module.state_dict(), shards, made.scheme_state_dict()), file)
    return file.getvalue()


def loaded(made: Any, file: bytes) -> None:
    weights, shards, kept = torch.load(io.BytesIO(file), weights_only=True)
    made.module.load_state_dict(weights)
    made.optimizer.load_shard_state_dict(shards)
    made.load_scheme_state_dict(kept)


@pytest.mark.parametrize(("world", "schemes"), [(3, SCHEMES[:-1]), (2, SCHEMES[-1:])])
@ranks.on("world", timeout_s=110)
def test_a_resumed_run_ends_with_the_same_bits(rank: int, schemes: list[str]) -> None:
    for scheme in schemes:
        whole, first, second, without = (wrapped(0, scheme) for _ in range(4))
        trained(whole, rank, 0, BEFORE + AFTER)
        trained(first, rank, 0, BEFORE)
        file = saved(first)
        loaded(second, file)
        without.module.load_state_dict(first.module.state_dict())
        for made in (first, second, without):
            trained(made, rank, BEFORE, AFTER)
        expected = list(whole.module.parameters())
        for made in (first, second):
            assert all(map(torch.equal, made.module.parameters(), expected)), scheme
        # Without what the scheme keeps they differ, so that it is what makes them the same.
        assert not all(map(torch.equal, without.module.parameters(), expected)), scheme


@ranks.on(1)
def test_another_scheme_s_state_is_refused(rank: int) -> None:
    kept = wrapped(0, "averaging:4").scheme_state_dict()
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (wrapped(0, "averaging:5"), kept, "of scheme 'averaging:4'"),
        (wrapped(0, "averaging:4"), {**kept, "place": (rank, 3)}, r"of place \(0, 3\)"),
        (wrapped(0, "averaging:4"), {**kept, "tensors": [torch.zeros(3)]}, r"of tensors of \[3\] elements"),
        (wrapped(0, "averaging:4", learn=2), kept, "still to be made"),
    ]
    for made, state, said in refused:
        with pytest.raises(OptionError, match=said):
            made.load_scheme_state_dict(state)
