from __future__ import annotations

import itertools

import pytest

from ddpsim.bucketing.assign import Parameter
from ddpsim.common.errors import InputError, PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.points import Point, PointKind
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.units import units_of
from ddpsim.workload.files import load_workload

WORLD, LAYERS = 16, 5


def transformer(world: int = WORLD) -> SchemeInputs:
    names = ["words.weight", *(f"h.{n}.{part}.weight" for n in range(LAYERS) for part in "abc"), "norm.weight"]
    parameters = [Parameter(name, (16, 4)) for name in names]
    return SchemeInputs(parameters=parameters, buckets=[tuple(reversed(range(len(names))))], world_size=world)


def moved(schedule: Schedule, ranks: int) -> float:
    """Bytes that a rank of a ring sends for all messages."""
    return sum(message.size_bytes * message.op.sent(schedule.groups.get(message.group, ranks)) for message in schedule)


def blocks_bytes(setup: SchemeInputs) -> int:
    return setup.size_bytes([index for unit in units_of(setup.parameters)[1] for index in unit])


def test_bytes_are_three_times_those_of_the_parameters_with_resharding_and_an_allreduce_s_without() -> None:
    setup = transformer()
    total, share = setup.size_bytes(range(len(setup.parameters))), (WORLD - 1) / WORLD
    assert moved(scheme_named("fsdp2:reshard_root").schedule(setup), WORLD) == pytest.approx(3 * share * total)
    kept = 2 * share * total + share * blocks_bytes(setup)
    assert moved(scheme_named("fsdp2").schedule(setup), WORLD) == pytest.approx(kept)
    allreduced = moved(scheme_named("ddp").schedule(setup), WORLD)
    assert moved(scheme_named("fsdp2:noreshard").schedule(setup), WORLD) == pytest.approx(allreduced)


def test_half_the_bytes_are_gathered_in_half_the_precision() -> None:
    setup = transformer()
    for op, factor in ((Operation.ALL_GATHER, 0.5), (Operation.REDUCE_SCATTER, 1.0)):
        mixed, plain = (
            sum(m.size_bytes for m in scheme_named(name).schedule(setup) if m.op is op)
            for name in ("fsdp2:gather=bf16,reduce=fp32", "fsdp2")
        )
        assert mixed == factor * plain


def test_shards_over_all_ranks_are_fsdp2_and_over_one_an_allreduce_a_unit() -> None:
    setup = transformer()
    assert scheme_named("hsdp:16").schedule(setup).messages == scheme_named("fsdp2").schedule(setup).messages
    alone = scheme_named("hsdp:1").schedule(setup)
    assert [m.op for m in alone] == [Operation.ALLREDUCE] * (LAYERS + 1)
    root, blocks = units_of(setup.parameters)
    assert [m.parameters for m in alone] == [*reversed(blocks), root]


def test_a_shard_is_summed_over_copies_after_its_scatter() -> None:
    schedule = scheme_named("hsdp:4").schedule(transformer())
    scatters = {m.id: m for m in schedule if m.op is Operation.REDUCE_SCATTER}
    sums = [m for m in schedule if m.op is Operation.ALLREDUCE]
    assert len(sums) == len(scatters) == LAYERS + 1
    for message in sums:
        [scatter] = message.after_messages
        assert message.size_bytes == scatters[scatter].size_bytes // 4
        assert schedule.groups[message.group] == 4


def test_two_units_at_most_are_gathered_ahead_of_the_one_that_computes() -> None:
    setup = transformer()
    schedule = scheme_named("fsdp2").schedule(setup)
    gathers = [m for m in schedule if m.op is Operation.ALL_GATHER]
    forward = [m for m in gathers if m.blocks[0].kind is PointKind.FORWARD]
    assert [m.after for m in forward[:2]] == [(), ()]
    for before, message in zip(forward, forward[2:], strict=False):
        [point] = message.after
        assert point in before.blocks
    backward = [m for m in gathers if m.blocks[0].kind is PointKind.BACKWARD]
    for before, message in itertools.pairwise(backward):
        [point] = message.after
        assert point in before.blocks


def test_a_reduction_holds_up_the_backward_of_the_second_unit_behind() -> None:
    schedule = scheme_named("fsdp2").schedule(transformer())
    scatters: list[Message] = [m for m in schedule if m.op is Operation.REDUCE_SCATTER]
    for first, third in zip(scatters[:-1], scatters[2:-1], strict=False):
        assert {Point(PointKind.BACKWARD, index) for index in third.parameters} <= set(first.blocks)


def test_gathered_memory_is_a_few_blocks_and_the_root_or_everything() -> None:
    setup = transformer()
    root, blocks = units_of(setup.parameters)
    block, total = setup.size_bytes(blocks[0]), setup.size_bytes(range(len(setup.parameters)))
    kept = scheme_named("fsdp2").schedule(setup).sharding.gathered_bytes
    assert setup.size_bytes(root) + block < kept <= setup.size_bytes(root) + 3 * block
    assert total <= scheme_named("fsdp2:noreshard").schedule(setup).sharding.gathered_bytes <= 2 * total


@pytest.mark.parametrize("shards", [3, 32])
def test_shards_that_do_not_divide_the_world_are_refused(shards: int) -> None:
    with pytest.raises(PlanError, match=f"{shards} shards do not divide a world of 16") as caught:
        scheme_named(f"hsdp:{shards}").schedule(transformer())
    assert "hsdp" in str(caught.value)


@pytest.mark.parametrize("name", ["fsdp2", "hsdp:4", "zero3:param_persistence_threshold=1"])
def test_what_is_gathered_for_forward_cannot_wait_for_the_end_of_backward(name: str) -> None:
    with pytest.raises(PlanError, match="cannot wait for their end"):
        without_overlap(scheme_named(name).schedule(transformer()))
    for whole in ("zero1", "dear", "zero2:deepspeed"):
        without_overlap(scheme_named(whole).schedule(transformer()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fsdp2:reshard", "takes no option 'reshard'"),
        ("fsdp2:gather=bf17", "bf17"),
        ("fsdp2:noreshard,noreshard", "asked twice"),
        ("fsdp2:noreshard=1", "takes no option 'noreshard=1'"),
        ("hsdp", "needs how many"),
        ("hsdp:0", "'0' is no number"),
        ("hsdp:8,fast", "takes no option 'fast'"),
        ("zero1:fast", "takes no option 'fast'"),
        ("zero3:reduce_bucket_size=none", "'none' is no number of elements"),
        ("zero2:deepspeed,bucket=3", "takes no option 'bucket=3'"),
    ],
)
def test_options_that_are_none_are_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        scheme_named(text)
    assert text.split(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "blocks", "root"),
    [
        ("gpt2-small", 12, "transformer.wte.weight"),
        ("bert-large", 24, "embeddings.word_embeddings.weight"),
        ("resnet50", 16, "conv1.weight"),
        ("resnet152", 50, "conv1.weight"),
        ("vit-b16", 12, "class_token"),
        ("vgg16", 16, None),
        ("mlp", 6, None),
    ],
)
def test_units_of_shipped_models_are_their_repeated_blocks(workload: str, blocks: int, root: str | None) -> None:
    parameters = load_workload(workload).parameters
    rest, units = units_of(parameters)
    assert len(units) == blocks
    assert (parameters[rest[0]].name if rest else None) == root
    assert sorted([*rest, *(index for unit in units for index in unit)]) == list(range(len(parameters)))


def test_a_numbered_module_without_a_sibling_belongs_to_the_root() -> None:
    names = ("head.0.weight", "h.0.weight", "h.1.weight", "h.10.weight")
    assert units_of([Parameter(name, (1,)) for name in names]) == ((0,), [(1,), (2,), (3,)])


@pytest.mark.parametrize("scheme", ["fsdp2", "hsdp:2", "zero3"])
def test_a_model_without_parameters_has_none_to_shard(scheme: str) -> None:
    with pytest.raises(PlanError, match="no parameters to shard"):
        scheme_named(scheme).schedule(SchemeInputs(parameters=(), buckets=(), world_size=2))


def test_one_prefetched_unit_is_as_none_and_more_are_gathered_earlier_and_held() -> None:
    setup = transformer()
    plain, one, two = (
        scheme_named(f"fsdp2{given}").schedule(setup)
        for given in ("", ":forward_prefetch=1,backward_prefetch=1", ":forward_prefetch=2,backward_prefetch=2")
    )
    assert one.messages == plain.messages
    largest = max(setup.size_bytes(unit) for unit in units_of(setup.parameters)[1])
    assert two.sharding.gathered_bytes - plain.sharding.gathered_bytes == pytest.approx(largest, rel=0.05)

    def begins(schedule: Schedule) -> list[tuple[Point, ...]]:
        gathers = [m for m in schedule if m.op is Operation.ALL_GATHER and m.blocks[0].kind is PointKind.FORWARD]
        return [m.after for m in gathers]

    # Each gather waits for the entry of the unit one earlier.
    assert begins(two)[3:] == begins(plain)[2:-1]
    assert begins(two)[:3] == [()] * 3


def test_units_that_are_wrapped_are_messages_of_their_own() -> None:
    setup = transformer()
    every, half = (
        [m for m in scheme_named(f"fsdp2{given}").schedule(setup) if m.op is Operation.REDUCE_SCATTER]
        for given in ("", ":wrap=h.0")
    )
    assert len(half) == 2
    assert sum(m.size_bytes for m in half) == pytest.approx(sum(m.size_bytes for m in every), rel=0.05)
