from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import WorkloadError
from ddpsim.common.operation import Operation
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.expert_parallel import ExpertStep, Mixture, experts_in, experts_on_ranks
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import GPUS, gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu
from ddpsim.workload.operators import Activations
from tests.mixtures import EXPERT_BYTES, EXPERTS, INNER, LAYERS, TOKENS, WIDTH, make_shape, make_workload


def _part(ranks: int, shape: ModelShape | None = None, precision: str = "fp32") -> ExpertStep:
    shape = shape or make_shape()
    return experts_on_ranks(shape.forward, shape.backward, shape.forward_use, shape.parameters, ranks, precision)


def test_one_rank_computes_what_was_counted() -> None:
    part, whole = _part(1), make_shape()
    assert (part.forward, part.backward, part.forward_use) == (whole.forward, whole.backward, whole.forward_use)
    assert part.parameters == whole.parameters
    assert part.share == 1


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_computes_as_much_by_fewer_weights(ranks: int) -> None:
    part, whole = _part(ranks), make_shape()
    for mine, all_of_it in ((part.forward, whole.forward), (part.backward, whole.backward)):
        assert sum(each.flops for each in mine) == pytest.approx(sum(each.flops for each in all_of_it))
        other = [each.traffic_bytes - each.fixed_bytes for each in all_of_it]
        assert sum(each.traffic_bytes - each.fixed_bytes for each in mine) == pytest.approx(sum(other))
    dense = 4 * LAYERS * (WIDTH * WIDTH + EXPERTS * WIDTH)
    assert sum(p.size_bytes for p in part.parameters) == dense + LAYERS * EXPERTS // ranks * EXPERT_BYTES
    products = [each.product for each in part.forward if each.product and INNER in each.product]
    rows = TOKENS * ranks // EXPERTS
    assert products == [(1, rows, INNER, WIDTH), (1, rows, WIDTH, INNER)] * (LAYERS * EXPERTS // ranks)


def test_a_mixture_sends_its_tokens_there_and_back_each_way() -> None:
    for precision, width in (("fp32", 4), ("amp", 2)):
        part = _part(2, precision=precision)
        for messages in (part.forward_messages, part.backward_messages):
            assert [each.size_bytes for each in messages] == [TOKENS * WIDTH * width] * (2 * LAYERS)
            assert {each.operation for each in messages} == {Operation.ALL_TO_ALL}
            assert [each.after for each in messages] == sorted(each.after for each in messages)


def test_messages_stand_around_the_experts() -> None:
    part = _part(4)
    first, last = part.forward_messages[:2]
    # The dense product and the gate come before, the two experts' five operators each between.
    assert (first.after, last.after) == (1, 1 + 2 * 5)
    first, last = part.backward_messages[:2]
    assert (first.after, last.after) == (-1, -1 + 2 * 7)


def test_every_gradient_and_use_is_told_by_its_new_number() -> None:
    part, whole = _part(4), make_shape()
    names = [each.name for each in part.parameters]
    assert [names[i] for each in part.backward for i in each.gradients] == [
        name for each in whole.backward for i in each.gradients if (name := whole.parameters[i].name) in names
    ]
    for name, use in zip(names, part.forward_use, strict=True):
        assert use is not None
        assert part.forward[use].product is not None, name
    assert {names[index] for index in part.experts} == {name for name in names if "experts" in name}


def test_experts_are_told_by_the_names_that_libraries_give_them() -> None:
    names = (
        "model.layers.0.block_sparse_moe.experts.{}.w1.weight",
        "decoder.layers.3.mlp.experts.local_experts.{}.linear_fc1.weight",
        "h.1.mlp.deepspeed_moe.experts.deepspeed_experts.{}.up.weight",
    )
    for name in names:
        found = experts_in([Parameter(name.format(number), (2, 2)) for number in range(12)])
        assert list(found.values()) == [[(number,) for number in range(12)]]
    assert experts_in(load_workload("gpt2-small").parameters) == {}


def test_tokens_that_are_spread_unevenly_are_counted_where_they_went() -> None:
    shape = make_shape(experts=4, layers=1)
    products = [at for at, each in enumerate(shape.forward) if each.product and INNER in each.product]
    forward = list(shape.forward)
    for at in products[:2]:
        _, rows, outputs, inputs = forward[at].product or (0, 0, 0, 0)
        forward[at] = replace(forward[at], product=(1, rows // 2, outputs, inputs))
    uneven = replace(shape, forward=tuple(forward))
    mixture = Mixture.of(
        "m", experts_in(shape.parameters)["layers.0.moe.experts"], forward, shape.backward, shape.forward_use or ()
    )
    assert mixture.sizes(forward, 4)[0] == TOKENS * WIDTH * 4 * 7 // 8
    assert _part(2, uneven).forward_messages[0].size_bytes == TOKENS * WIDTH * 4 * 7 // 8


def test_an_estimate_has_the_messages_where_they_are_sent() -> None:
    made = estimate(make_shape(), GPUS["A100"], "amp", EstimateOptions(expert_parallel=4))
    assert made.experts is not None
    assert (made.tensor, made.operators) == (None, None)
    assert (made.experts.ranks, made.experts.layers) == (4, LAYERS)
    assert made.experts.size_bytes == 4 * LAYERS * TOKENS * WIDTH * 2
    forward = made.experts.forward
    assert len(forward) == 2 * LAYERS
    assert [each.device for each in forward] == sorted(each.device for each in forward)
    assert sum(map(len, made.experts.backward.values())) == 2 * LAYERS


def test_casts_of_weights_that_others_have_take_no_memory() -> None:
    part, whole = _part(8), Activations(1000, 500, 1200, 800, 600)
    kept = part.activations(whole)
    assert kept is not None
    assert kept.narrow_bytes == 200 + round(800 * part.share)
    assert kept.amp_bytes == 600 + round(600 * part.share)
    assert kept.wide_bytes == 500
    assert part.activations(None) is None


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(WorkloadError, match="2 ranks are each to have some of the experts, and its operators are not"):
        estimate_on_gpu(replace(make_workload(), operators=None), gpu_named("A100"), expert_parallel=2)
    shape = make_shape()
    with pytest.raises(WorkloadError, match="computed again in backward, where its tokens would be sent again"):
        _part(2, replace(shape, backward=(*shape.forward, *shape.backward)))
    never = replace(shape, forward_use=(*(shape.forward_use or ())[:4], None, None, *(shape.forward_use or ())[6:]))
    with pytest.raises(WorkloadError, match=r"expert 1 of layers.0.moe.experts is not computed in the step"):
        _part(2, never)
