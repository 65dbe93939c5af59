"""YAML read strictly: duplicate keys and odd numbers refused, size and nesting bounded, errors with their line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import yaml

from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.files import refuse_other_kind
from ddpsim.common.strict import check_values

_MOST_LEVELS, _MOST_VALUES = 200, 100_000
"""Nesting and values of a file at most; chosen by hand, far beyond what people write."""

_MOST_CHARACTERS = 1 << 21
"""Of a file at most; chosen by hand, a hundred times the longest made."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _StrictLoader(_Loader):  # type: ignore[misc]
    """A loader that refuses a key given twice, and takes for numbers only what people mean as numbers.

    PyYAML lets duplicates pass, and reads 12:30 as 750 and 010 as 8.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [entry for entry in entries if entry[0] not in (_INT, _FLOAT)]
        for first, entries in _Loader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Take merged keys in, as many as a file may have: thirty mappings that each merge two hold a billion."""
        super().flatten_mapping(node)
        if len(node.value) > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, f"more than {_MOST_VALUES:,} keys", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return the mapping of `node`."""
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            names = [key.value for key, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} stands twice", node.start_mark)
        return mapping


_StrictLoader.add_implicit_resolver(_INT, re.compile(r"(0|[-+]?[1-9][0-9]*)$"), list("-+0123456789"))
_StrictLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)


def read_mapping(
    text: str,
    place: str,
    error: type[InputError] = TopologyError,
    start: str = "start with `name:` and `node:`",
    *,
    wanted: str = "",
) -> dict[str, object]:
    """Return the mapping that a YAML file is.

    Args:
        text: the file's.
        place: the file's name in errors.
        error: the kind of file's own.
        start: what to do where it is no mapping.
        wanted: what it should be, `a machine`; a file of another kind is refused.

    Raises:
        InputError: as `error`: not YAML, with its line; not a mapping; a key given twice.
    """
    if wanted:
        refuse_other_kind(text, wanted, place, error, start)
    if len(text) > _MOST_CHARACTERS:
        raise error(f"more than {_MOST_CHARACTERS:,} characters, the most that is read", place=place, remedy=start)
    _check_depth(text, place, error)
    try:
        document = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as cause:
        mark = getattr(cause, "problem_mark", None)
        where = f"{place}: line {mark.line + 1}, column {mark.column + 1}" if mark else place
        problem = getattr(cause, "problem", None) or str(cause)
        raise error(f"malformed YAML: {problem}", place=where, remedy="mend the line") from cause
    except ValueError as cause:
        raise error(f"malformed YAML: {cause}", place=place, remedy="mend the number or date") from cause
    if not isinstance(document, dict):
        raise error(f"a mapping was expected, this is {type(document).__name__}", place=place, remedy=start)
    check_values(document, place, error, "mend the value", most=_MOST_VALUES)
    return document


def _check_depth(text: str, place: str, error: type[InputError]) -> None:
    """Raise `error` for nesting that no file has, before a parser recurses into it."""
    # By brackets and indentation, both upper bounds of a level; texts in quotes count too, which no real file notices.
    depth = deepest = 0
    for number, line in enumerate(text.splitlines(), 1):
        for bracket in re.findall(r"[][{}]", line):
            depth += 1 if bracket in "[{" else -1
            deepest = max(deepest, depth)
        indent = len(line) - len(line.lstrip(" -"))
        if max(deepest, indent) > _MOST_LEVELS:
            raise error(
                f"nested too deep, {_MOST_LEVELS} levels at most are read",
                place=f"{place}: line {number}",
                remedy="use fewer levels",
            )


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line, from 1, of the value at `path`, or of its nearest parent that the text has."""
    node = yaml.compose(text, Loader=_Loader)
    for key in path:
        inner = _child(node, key)
        if inner is None:
            break
        node = inner
    return None if node is None else node.start_mark.line + 1


def _child(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        inner: yaml.Node = node.value[key]
        return inner
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == str(key)), None)
    return None
