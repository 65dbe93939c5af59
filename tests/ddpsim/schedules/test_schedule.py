from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddpsim.common.errors import InputError, PlanError, UnknownNameError
from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.named import scheme_named, schemes_named
from ddpsim.schedules.points import Point, PointKind, points
from ddpsim.schedules.schedule import Schedule, check
from ddpsim.schedules.schemes import ddp, dear
from ddpsim.schedules.setup import SchemeInputs
from tests.ddpsim.schedules.test_issuing import setup_of

SETUP = setup_of((3, 2), (1, 0))


@pytest.mark.parametrize("name", ["ddp", "naive", "flat", "priority", "priority:128B", "dear", "zero1", "zero2"])
def test_every_scheme_sums_each_gradient_once_and_is_read_back_by_name(name: str) -> None:
    schedule = scheme_named(name).schedule(SETUP)
    assert schedule.scheme == name
    summed = sum(m.size_bytes for m in schedule if m.op.reduces)
    assert summed == SETUP.size_bytes(range(4))
    assert schedule.fingerprint() == scheme_named(name).schedule(SETUP).fingerprint()


def test_segments_tile_their_message() -> None:
    message = Message(id="b", op=Operation.ALLREDUCE, size_bytes=1000, parameters=(0,), segment_bytes=300)
    assert [piece.part for piece in message.segments(16)] == [(0, 288), (288, 576), (576, 864), (864, 1000)]
    assert sum(piece.size_bytes for piece in message.segments(16)) == 1000


def changed(**changes: object) -> Callable[[Schedule], Schedule]:
    return lambda schedule: replace(
        schedule,
        messages=(replace(schedule.messages[0], **changes), *schedule.messages[1:]),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(after_messages=("gather 0",)), "waits for itself: .*gather 0"),
        (changed(after_messages=("lost",)), "'lost', which is no message"),
        (changed(id="scatter 1"), "two messages have this name"),
        (changed(parameters=(3,)), "no message sums"),
        (changed(parameters=(3, 2, 1)), "more than one message: scatter 0, scatter 1"),
        (changed(parameters=(3, 2, 9)), "parameter 9 is not in a model of 4"),
        (changed(group="shard"), "'shard' is no group"),
        (lambda schedule: replace(schedule, groups={"shard": 3}), "groups of 3 ranks do not divide a world of 4"),
    ],
)
def test_what_cannot_be_carried_out_is_named(change: Callable[[Schedule], Schedule], said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        check(change(dear(SETUP)), SETUP.parameters, SETUP.world_size)
    assert any(
        name in str(caught.value) for name in ("message '", "parameter 2 (layer2.weight)", "group '", "parameter 1 (")
    )


def test_a_sum_that_nobody_awaits_is_refused() -> None:
    with pytest.raises(PlanError, match="nothing waits"):
        check(changed(blocks=())(ddp(SETUP)), SETUP.parameters, 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"segment_bytes": 0}, "segment of 0"),
        ({"every": 0}, "every 0"),
        ({"part": (4, 4)}, "no part"),
        ({"blocks": points(PointKind.GRADIENT, (0,))}, "nothing can wait at gradient:0"),
    ],
)
def test_messages_refuse_what_they_cannot_be(fields: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Message(id="m", op=Operation.ALLREDUCE, size_bytes=8, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["gradient", "gradient:x", "backward_end:1", "lunch:3", "gradient:-1"])
def test_text_that_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="no point"):
        Point.parse(text)


def test_points_are_read_back() -> None:
    for point in (Point(PointKind.BACKWARD_END), Point(PointKind.FORWARD, 12)):
        assert Point.parse(str(point)) == point


REFUSED = [
    "dpp", "ddp:4", "priority:0B", "priority:fast", "jsn:dumps", "json:dumps_all", "nowhere.module:f",
    "averaging", "averaging:0", "averaging:x", "averaging:4,momentum=1", "slowmo:4,momentum=-1", "slowmo:",
    "slowmo:4,x", "local-sgd:2,ranks=0", "gradientflow:density=0", "gradientflow:density=2", "gradientflow:chunk=0",
    "gradientflow:momentum=1", "horovod:fusion=0MiB", "horovod:cycle=-1ms", "horovod:fusion=64", "horovod:64MiB",
    "horovod:agree=nccl", "multiworker-mirrored:pack=0B", "priority:credit=0B", "priority:4MiB,credit=4",
    "priority:4MiB,8MiB", "parameter-server:servers=0", "fsdp2:offlod", "parallax:async",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_names_and_options_that_are_no_schemes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="scheme"):
        scheme_named(text)


def test_a_scheme_of_ones_own_must_return_a_schedule() -> None:
    with pytest.raises(InputError, match="no `ddpsim"):
        scheme_named("tests.ddpsim.schedules.test_schedule:nothing").schedule(SETUP)


def alone(setup: SchemeInputs) -> Schedule:
    return replace(ddp(setup), ranks_meet=False)


def test_ranks_of_a_scheme_of_ones_own_do_not_go_alone() -> None:
    with pytest.raises(InputError, match="go on without each other"):
        scheme_named("tests.ddpsim.schedules.test_schedule:alone").schedule(SETUP)


def test_what_a_scheme_of_ones_own_raises_says_where() -> None:
    with pytest.raises(InputError, match=r"raised ZeroDivisionError at test_schedule.py:\d+: division by zero"):
        scheme_named("tests.ddpsim.schedules.test_schedule:broken").schedule(SETUP)


@pytest.mark.parametrize("text", ["priorty:4MiB", "fsdp:noreshard"])
def test_a_name_of_no_module_is_taken_for_a_typing_error(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown scheme .*did you mean"):
        scheme_named(text)


def test_a_module_of_ones_own_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["from ddpsim.schedules.schemes import naive", "def mine(setup):", "    return naive(setup)"]
    (tmp_path / "lone_schemes.py").write_text("\n".join(lines))
    (tmp_path / "broken_schemes.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert schemes_named("fsdp2:noreshard,lone_schemes:mine") == ["fsdp2:noreshard", "lone_schemes:mine"]
    assert scheme_named("lone_schemes:mine").schedule(SETUP).messages == scheme_named("naive").schedule(SETUP).messages
    with pytest.raises(InputError, match="cannot be imported: ZeroDivisionError"):
        scheme_named("broken_schemes:mine")


def nothing(setup: SchemeInputs) -> None:
    return None


def broken(setup: SchemeInputs) -> float:
    return setup.world_size / 0
