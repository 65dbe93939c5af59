"""`dataclasses.dataclass` with methods that are written when a class is first used.

The standard library compiles six methods of every class while its module is imported, and a command imports 250 classes
and makes objects of half of them. Here a method is compiled when it is first called, or needs no source of its own.
Fields, slots, `fields`, `replace` and `asdict` are the standard library's; `InitVar` and orderings are not supported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True, kw_only=False):  # noqa: A002
        """Return `cls` as a dataclass; the arguments are those of `dataclasses.dataclass`."""

        def decorate(plain):
            own = vars(plain).copy()
            # A class that says nothing of itself is described by its signature, found at length.
            plain.__doc__ = plain.__doc__ or plain.__name__
            extends = any(
                base.__dataclass_params__.frozen for base in plain.__mro__[1:] if dataclasses.is_dataclass(base)
            )
            settings = {"slots": slots, "kw_only": kw_only, "frozen": frozen and extends}
            made = dataclasses.dataclass(init=False, repr=False, eq=False, **settings)(plain)
            if "__init__" not in own:
                _on_first_use(made, "__init__", lambda: _init(made, frozen))
                made.__signature__ = _Signature()
            if repr and "__repr__" not in own:
                _on_first_use(made, "__repr__", lambda: (_repr(made), {"recursive": recursive_repr}))
            if eq:
                _compare(made, own, frozen)
            if frozen:
                _freeze(made, own)
            return made

        return decorate if cls is None else decorate(cls)


def _on_first_use(cls: Any, method: str, lines: Callable[[], tuple[list[str], dict[str, Any]]]) -> None:
    """Give `cls` a method that compiles itself, from source and the names in it, when it is first called."""

    def write() -> Callable[..., Any]:
        source, names = lines()
        exec("\n".join(source), names)
        written: Callable[..., Any] = names[method]
        written.__annotations__ = names.get("dataclass_types", {})
        _put(cls, method, written)
        return written

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        return write()(self, *args, **kwargs)

    first.__dict__["write"] = write
    _put(cls, method, first)


class _Signature:
    """The signature of a class, as people ask for it: that of its `__init__`, which is compiled for it."""

    def __get__(self, one: object, of: Any) -> Any:
        from inspect import signature

        init = of.__init__
        whole = signature(init.__dict__["write"]() if "write" in init.__dict__ else init)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def _put(cls: Any, name: str, function: Callable[..., Any]) -> None:
    """Make `function` the method `name` of `cls`."""
    function.__name__, function.__qualname__, function.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    setattr(cls, name, function)


def _init(cls: Any, frozen: bool) -> tuple[list[str], dict[str, Any]]:
    types: dict[str, Any] = {"return": None}
    names: dict[str, Any] = {"dataclass_set": object.__setattr__, "dataclass_missing": object()}
    names["dataclass_types"] = types
    plain: list[str] = ["self"]
    keywords: list[str] = []
    body: list[str] = []
    for each in dataclasses.fields(cls):
        name, value, given = each.name, each.name, ""
        default, made = f"dataclass_default_{name}", f"dataclass_made_{name}"
        if each.default is not dataclasses.MISSING:
            names[default], given = each.default, f"={default}"
        elif each.default_factory is not dataclasses.MISSING:
            names[made], given = each.default_factory, "=dataclass_missing"
            value = f"{made}() if {name} is dataclass_missing else {name}"
        if each.init:
            types[name] = each.type
            (keywords if each.kw_only else plain).append(f"{name}{given}")
        elif given:
            value = default if default in names else f"{made}()"
        else:
            continue  # the object gives it to itself
        body.append(f" dataclass_set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*plain, *(["*", *keywords] if keywords else [])])
    return [f"def __init__({parameters}):", *(body or [" pass"])], names


def _repr(cls: Any) -> list[str]:
    shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in dataclasses.fields(cls) if each.repr)
    return ["@recursive()", "def __repr__(self):", f' return f"{{self.__class__.__qualname__}}({shown})"']


def _compare(cls: Any, own: Mapping[str, Any], frozen: bool) -> None:
    """Give `cls` what compares and hashes it by value, each where its body has none."""
    if "__eq__" not in own:
        _on_first_use(cls, "__eq__", lambda: (_eq(cls), {}))
    if own.get("__hash__") is None:
        if frozen:
            _on_first_use(cls, "__hash__", lambda: (_hash(cls), {}))
        else:
            cls.__hash__ = None


def _eq(cls: Any) -> list[str]:
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    return [
        "def __eq__(self, other):",
        " if other.__class__ is not self.__class__:",
        "  return NotImplemented",
        f" return other is self or {_values('self', names)} == {_values('other', names)}",
    ]


def _hash(cls: Any) -> list[str]:
    hashed = [each.name for each in dataclasses.fields(cls) if (each.compare if each.hash is None else each.hash)]
    return ["def __hash__(self):", f" return hash({_values('self', hashed)})"]


def _values(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name},' for name in names)})"


def _freeze(cls: Any, own: Mapping[str, Any]) -> None:
    """Have attributes of `cls` refuse to be set, but by pickle and copy."""
    names = tuple(each.name for each in dataclasses.fields(cls))
    of_class = frozenset(names)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in of_class:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in of_class:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def set_state(self: Any, values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    _put(cls, "__setattr__", set_attribute)
    _put(cls, "__delattr__", delete_attribute)
    if "__slots__" in vars(cls) and "__getstate__" not in own:
        _put(cls, "__getstate__", state)
        _put(cls, "__setstate__", set_state)
    # The standard library lets a frozen class extend only what it knows as frozen.
    cls.__dataclass_params__.frozen = True
