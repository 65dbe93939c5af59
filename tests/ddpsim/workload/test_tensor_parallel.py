from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.common.errors import WorkloadError
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import GPUS, gpu_named
from ddpsim.workload.on_gpu import estimate_on_gpu
from ddpsim.workload.operators import Operator, StepOperators
from ddpsim.workload.parallel_linears import ParallelBlock, ParallelLinear, backward_spans, blocks_in
from ddpsim.workload.tensor_parallel import RankStep, on_ranks

TOKENS, WIDTH, LAYERS, WORDS = 8 * 512, 768, 12, 50257
"""Of GPT-2 small at its batch of 8 sequences of 512 tokens."""


def _operators(name: str = "gpt2-small") -> StepOperators:
    found = load_workload(name).operators
    assert found is not None
    return found


def _part(ranks: int, name: str = "gpt2-small", precision: str = "fp32") -> RankStep:
    workload, whole = load_workload(name), _operators(name)
    phases = whole.amp if precision == "amp" else whole
    assert phases is not None
    return on_ranks(phases.forward, phases.backward, phases.forward_use, workload.parameters, ranks, precision)


@pytest.mark.parametrize("name", ["gpt2-small", "bert-base", "bert-large", "vit-b16"])
def test_one_rank_computes_what_was_counted(name: str) -> None:
    part, whole = _part(1, name), _operators(name)
    assert (part.forward, part.backward) == (whole.forward, whole.backward)
    assert part.parameters == load_workload(name).parameters
    assert part.share == 1


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("amp", 2)])
def test_a_layer_sends_its_activations_twice_each_way(precision: str, width: int) -> None:
    part = _part(4, precision=precision)
    activations, loss = TOKENS * WIDTH * width, TOKENS * 4
    # The embedding is fp32 under autocast; the output layer's input has a gradient of its own.
    assert [m.size_bytes for m in part.forward_messages] == [
        TOKENS * WIDTH * 4,
        *[activations] * (2 * LAYERS),
        *[loss] * 3,
    ]
    assert [m.size_bytes for m in part.backward_messages] == [activations] * (1 + 2 * LAYERS)
    assert [m.after for m in part.backward_messages] == sorted({m.after for m in part.backward_messages})


def test_bert_sends_as_much_beside_the_tokens_that_it_guesses() -> None:
    part = _part(2, "bert-base")
    guessed = _operators("bert-base").forward[-6].product
    assert guessed is not None
    assert part.backward_messages[0].size_bytes == guessed[1] * WIDTH * 4
    assert [m.size_bytes for m in part.backward_messages[1:]] == [32 * 128 * WIDTH * 4] * (2 * LAYERS)


def test_parameters_are_cut_by_columns_rows_and_words() -> None:
    whole = {p.name: p.shape for p in load_workload("gpt2-small").parameters}
    part = {p.name: p.shape for p in _part(4).parameters}
    assert part["transformer.wte.weight"] == (12565, WIDTH)  # 50,257 words in four parts, the last of them padded
    assert part["transformer.h.3.attn.c_attn.weight"] == (WIDTH, 3 * WIDTH // 4)
    assert part["transformer.h.3.attn.c_attn.bias"] == (3 * WIDTH // 4,)
    assert part["transformer.h.3.attn.c_proj.weight"] == (WIDTH // 4, WIDTH)
    assert part["transformer.h.3.mlp.c_fc.weight"] == (WIDTH, WIDTH)
    assert part["transformer.h.3.mlp.c_proj.weight"] == (WIDTH, WIDTH)
    own = ("ln", "wpe", "c_proj.bias")
    assert all(part[name] == shape for name, shape in whole.items() if any(each in name for each in own))


def test_products_are_cut_where_their_linears_are() -> None:
    part = _part(4)
    c_attn, attention, c_proj, c_fc, down = (part.forward[at] for at in (7, 8, 9, 15, 17))
    assert c_attn.product == (1, TOKENS, 3 * WIDTH // 4, WIDTH)
    assert c_proj.product == (1, TOKENS, WIDTH, WIDTH // 4)
    assert c_fc.product == (1, TOKENS, WIDTH, WIDTH)
    assert down.product == (1, TOKENS, WIDTH, WIDTH)
    # Of a linear by columns the tokens come in whole, their features leave in parts, and the weight is a part.
    assert c_fc.traffic_bytes == pytest.approx(4 * (TOKENS * WIDTH + TOKENS * WIDTH + WIDTH * WIDTH + WIDTH), rel=1e-3)
    assert attention.traffic_bytes == _operators().forward[8].traffic_bytes / 4
    norms = [at for at, each in enumerate(part.forward) if each.term == "norms"]
    assert all(part.forward[at] == _operators().forward[at] for at in norms)
    assert sum(each.flops for each in part.forward) == pytest.approx(sum(o.flops for o in _operators().forward) / 4)
    backward = sum(each.flops for each in part.backward), sum(each.flops for each in _operators().backward)
    assert backward[0] == pytest.approx(backward[1] / 4)


def test_layers_that_are_computed_again_send_again() -> None:
    workload, whole = load_workload("gpt2-small"), _operators()
    blocks = blocks_in(whole.forward, whole.forward_use or (), workload.parameters)
    again = _with_layers_again(whole)
    spans = backward_spans(blocks, again)
    assert [span.again for span in spans] == [True, True, False, False] * LAYERS
    part = on_ranks(whole.forward, again, whole.forward_use, workload.parameters, 2, "fp32")
    assert len(part.backward_messages) == 1 + 4 * LAYERS
    more = sum(each.flops for each in again) - sum(each.flops for each in whole.backward)
    assert more == pytest.approx(sum(o.flops for o in whole.forward[6:198]))
    assert sum(each.flops for each in part.backward) == pytest.approx(sum(each.flops for each in again) / 2)


def _with_layers_again(whole: StepOperators) -> tuple[Operator, ...]:
    """Return backward with the sixteen operators of each layer's forward before those of its backward."""
    products = [at for at, each in enumerate(whole.backward) if each.product][2:]
    begins = products[:: len(products) // LAYERS]
    found: list[Operator] = []
    for at, each in enumerate(whole.backward):
        if at in begins:
            layer = LAYERS - 1 - begins.index(at)
            found += whole.forward[6 + 16 * layer : 22 + 16 * layer]
        found.append(each)
    return tuple(found)


def test_messages_stand_where_their_operators_do() -> None:
    shape = ModelShape.of(load_workload("gpt2-small"), _operators())
    made = estimate(shape, GPUS["A100"], "amp", EstimateOptions(tensor_parallel=2))
    assert made.tensor is not None
    forward = made.tensor.forward
    assert [each.device for each in forward] == sorted(each.device for each in forward)
    assert all(0 < each.device <= 1 and 0 < each.host <= 1 for each in made.tensor.messages)
    first_norm = next(i for i, p in enumerate(made.parameters) if p.name == "transformer.h.0.ln_2.weight")
    use = made.forward_shares().device_s[first_norm]
    # The first layer's first message is behind its attention's projection, before what leads to its second norm.
    assert forward[0].device < forward[1].device < use < forward[2].device
    backward = made.tensor.backward
    assert sum(map(len, backward.values())) == 1 + 2 * LAYERS
    assert made.operators is None


def test_a_rank_takes_a_part_of_the_time_and_of_the_memory() -> None:
    whole, half = (estimate_on_gpu(load_workload("gpt2-small"), gpu_named("A100"), tensor_parallel=t) for t in (1, 2))
    assert float(whole.backward.device_s[0]) / 2 < float(half.backward.device_s[0]) < float(whole.backward.device_s[0])
    assert half.gradient_bytes == pytest.approx(whole.gradient_bytes / 2, rel=0.01)
    assert whole.activations_bytes is not None
    assert half.activations_bytes is not None
    assert whole.activations_bytes / 2 < half.activations_bytes < whole.activations_bytes


def test_what_cannot_be_cut_is_refused() -> None:
    bare = replace(load_workload("gpt2-small"), operators=None)
    with pytest.raises(WorkloadError, match="its operators are not known; make the file with `python -m ddpexec est"):
        estimate_on_gpu(bare, gpu_named("A100"), tensor_parallel=2)
    recorded = replace(load_workload("gpt2-small"), estimated=False)
    with pytest.raises(WorkloadError, match="its times were recorded of whole ones"):
        estimate_on_gpu(recorded, gpu_named("A100"), tensor_parallel=2)


def _without_heads(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(replace(each, heads=0) for each in operators)


def test_where_heads_are_not_known_features_are_cut() -> None:
    workload, whole = load_workload("gpt2-small"), _operators()
    forward, backward = map(_without_heads, (whole.forward, whole.backward))
    made = on_ranks(forward, backward, whole.forward_use, workload.parameters, 8, "fp32")
    assert len(made.forward_messages) == 1 + 2 * LAYERS + 3
    with pytest.raises(WorkloadError, match=r"5 ranks do not divide the 768 features by which .*c_attn.weight|2304"):
        on_ranks(forward, backward, whole.forward_use, workload.parameters, 5, "fp32")


def test_heads_are_told_by_products_of_queries_and_keys() -> None:
    workload, whole = load_workload("gpt2-small"), _operators()
    eager = tuple(
        replace(each, heads=0, product=(8 * 12, 512, 512, 64)) if each.term == "attention" else each
        for each in whole.forward
    )
    found = blocks_in(eager, whole.forward_use or (), workload.parameters)
    known = blocks_in(whole.forward, whole.forward_use or (), workload.parameters)
    assert [block.heads for block in found] == [block.heads for block in known] == [12, None] * LAYERS


def test_keys_that_several_queries_share_have_fewer_heads() -> None:
    queries, keys, row = (ParallelLinear(n, TOKENS, out, width, n) for n, out, width in _SHARED)
    block = ParallelBlock((queries, keys), row, heads=32)
    assert [block.heads_of(each) for each in block.linears] == [32, 8, 32]


_SHARED = ((0, 4096, 4096), (1, 1024, 4096), (2, 4096, 4096))
"""Number, features out and in of linears of Llama 3's 8 billion parameters: 32 heads of queries, 8 of keys."""
