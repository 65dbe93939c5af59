"""What schemes keep, saved through a file and taken up by new ranks: weights are those of one piece, bit by bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from ddpexec.errors import OptionError
from tests.ddpexec.groups import ranks
from tests.ddpexec.schedules.training import train, wrapped

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


def resumed(rank: int) -> dict[str, tuple[bool, bool, bool]]:
    """Return by scheme whether the weights of going on, of a resumption, and of one without are those of one piece."""
    found = {}
    world = torch.distributed.get_world_size()
    for scheme in SCHEMES:
        if (world == 2) != ("async" in scheme):
            continue
        whole, first, second, without = (wrapped(0, scheme) for _ in range(4))
        trained(whole, rank, 0, BEFORE + AFTER)
        trained(first, rank, 0, BEFORE)
        file = saved(first)
        loaded(second, file)
        without.module.load_state_dict(first.module.state_dict())
        for made in (first, second, without):
            trained(made, rank, BEFORE, AFTER)
        expected = [parameter.detach() for parameter in whole.module.parameters()]
        same = [
            all(torch.equal(a, b) for a, b in zip(made.module.parameters(), expected, strict=True))
            for made in (first, second, without)
        ]
        found[scheme] = (same[0], same[1], same[2])
    return found


@pytest.mark.parametrize("world", [3, 2])
def test_a_resumed_run_ends_with_the_same_bits(world: int) -> None:
    for found in ranks.run(world, resumed, timeout_s=110):
        assert len(found) == (1 if world == 2 else len(SCHEMES) - 1)
        assert {scheme for scheme, (going_on, resumed_, _) in found.items() if not (going_on and resumed_)} == set()
        # Without what the scheme keeps they differ, so that it is what makes them the same.
        assert not any(without for *_, without in found.values())


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
