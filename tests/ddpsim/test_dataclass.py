"""A dataclass of the project does what the standard library's does, and compiles nothing before it is used."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from ddpsim.dataclass import dataclass


def described(decorate: Any) -> type[Any]:
    class Link:
        """It has each kind of field that the project uses."""

        __annotations__ = {"name": str, "rate": float, "hops": list, "cost": float, "told": float}
        __module__ = __name__
        rate = 2.0
        hops = field(default_factory=list, hash=False)
        cost = field(default=1.0, kw_only=True, compare=False)
        told = field(init=False, repr=False, default=4.0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "told", self.told + self.rate)

    made: type[Any] = decorate(Link)
    return made


OURS, THEIRS = (described(each(frozen=True, slots=True)) for each in (dataclass, dataclasses.dataclass))


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    peers: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "arguments", [((), {}), (("a",), {"rate": 3.0}), (("a", 3.0, [1]), {"cost": 5.0}), (("a", 1.0, [], 2.0), {})]
)
def test_objects_are_those_of_the_standard_library(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    plain, keywords = arguments
    made = []
    for kind in (OURS, THEIRS):
        try:
            one = kind(*plain, **keywords)
        except TypeError as error:
            made.append(str(error))
        else:
            made.append(
                (repr(one), dataclasses.astuple(one), hash(one), one == kind(*plain, **{**keywords, "cost": 0.5}))
            )
    assert made[0] == made[1]


def test_its_signature_is_that_of_the_standard_library_before_and_after_an_object_is_made() -> None:
    kind = described(dataclass(frozen=True))
    asked = inspect.signature(kind)
    kind("a")
    known = inspect.signature(described(dataclasses.dataclass(frozen=True)))
    assert list(asked.parameters) == list(known.parameters) == ["name", "rate", "hops", "cost"]
    told = [[(each.kind, each.annotation) for each in one.parameters.values()] for one in (asked, known)]
    assert told[0] == told[1]
    assert inspect.signature(kind) == asked
    assert asked.return_annotation is known.return_annotation is None
    assert asked.parameters["rate"].default == 2.0


def test_lists_are_not_shared() -> None:
    first, second = OURS("a"), OURS("a")
    assert first.hops is not second.hops


def test_another_class_is_another_value() -> None:
    assert OURS("a") != THEIRS("a")
    assert Port(1) == Port(1) != Port(2)


def test_a_frozen_object_stays_as_it_is() -> None:
    port = Port(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'number'"):
        port.number = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'number'"):
        del port.number
    assert not hasattr(port, "__dict__")


def test_pickle_copy_and_replace_make_the_same_value() -> None:
    port = Port(1, (2, 3))
    assert pickle.loads(pickle.dumps(port)) == copy.deepcopy(port) == dataclasses.replace(port) == port
    assert dataclasses.replace(port, number=4) == Port(4, (2, 3))


@pytest.mark.parametrize("decorate", [dataclass, dataclasses.dataclass])
def test_a_frozen_class_is_extended_by_ours_and_by_the_standard_librarys(decorate: Any) -> None:
    body = {"__annotations__": {"rate": float}, "__module__": __name__, "rate": 0.0}
    made = decorate(frozen=True)(type("Uplink", (Port,), body))
    assert repr(made(1, (), 2.0)) == "Uplink(number=1, peers=(), rate=2.0)"
    assert len({made(1, (), 2.0), made(1, (), 2.0), made(1, (), 3.0)}) == 2


def test_what_may_change_has_no_hash() -> None:
    counter = dataclass(slots=True)(type("Counter", (), {"__annotations__": {"count": int}}))(1)
    counter.count += 1
    assert counter.count == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_what_compares_by_identity_keeps_its_hash() -> None:
    kind = dataclass(slots=True, eq=False)(type("Host", (), {"__annotations__": {"count": int}}))
    assert kind(1) != kind(1)
    assert isinstance(hash(kind(1)), int)


def test_a_method_of_its_own_stays() -> None:
    class Rank:
        number: int

        def __repr__(self) -> str:
            return f"<{self.number}>"

        def __eq__(self, other: object) -> bool:
            return True

    kind: Any = dataclass(frozen=True)(Rank)
    assert repr(kind(3)) == "<3>"
    assert kind(1) == kind(2)


def test_a_method_is_compiled_when_it_is_first_called() -> None:
    @dataclass(frozen=True)
    class Once:
        number: int

    before = Once.__init__.__code__
    Once(1)
    assert Once.__init__.__code__ is not before
    assert Once.__init__.__qualname__.endswith("Once.__init__")
