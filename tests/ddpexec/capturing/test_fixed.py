"""Operators of another batch by rule, held against counting that batch."""

import pytest

pytest.importorskip("torch")

from tests.ddpexec.capturing.counted import counted


@pytest.mark.parametrize(
    ("factor", "model"),
    [
        *((0.5, model) for model in ("mlp", "resnet50", "bert-base-s64", "vit-b16")),
        (3, "mlp"),
        *(
            pytest.param(3, model, marks=pytest.mark.needs("minutes"))
            for model in ("resnet50", "bert-base-s64", "vit-b16")
        ),
    ],
)
def test_another_batch_is_what_counting_it_finds(model, factor):
    """Traffic of one operator may be off where a tensor of a few bytes, or of indices, does not go with the batch."""
    known = counted(model)
    batch = int(known.batch_size * factor)
    scaled, there = known.operators(known.parameters).with_batch(batch), counted(model, batch)
    for ours, theirs in ((scaled.forward, there.forward), (scaled.backward, there.backward)):
        assert [(o.kind, o.gradients) for o in ours] == [(o.kind, o.gradients) for o in theirs]
        assert [o.flops for o in ours] == pytest.approx([o.flops for o in theirs], rel=1e-12)
        whole = sum(o.traffic_bytes for o in theirs)
        assert sum(abs(o.traffic_bytes - t.traffic_bytes) for o, t in zip(ours, theirs, strict=True)) < 0.005 * whole
