"""Mutations: of documents node by node, of texts byte by byte; all draws come from the `Random` given."""

from __future__ import annotations

import re
from collections import deque
from random import Random
from typing import Any

from studies.fuzz.values import DEEP, deep, token, value, written

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOST_NODES = 400
"""A document with more is not searched through for each mutation."""


def mutated_document(document: Any, random: Random) -> Any:
    """Change one to three nodes of `document`, in place where that can be, and return it."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = _change(document, random)
    return document


def json_bytes(document: object, random: Random) -> bytes:
    """Return a document as JSON, with what stands for deep nesting replaced."""
    text = written(document)
    if DEEP in text:
        text = text.replace(f'"{DEEP}"', deep(random)).replace(DEEP, "deep")
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(content: bytes, random: Random) -> bytes:
    """Return `content` with one to four stretches changed."""
    for _ in range(random.choice((1, 1, 2, 4))):
        content = random.choice(_ON_BYTES)(content, random)
    return content


def _holders(document: Any) -> list[tuple[Any, Any]]:
    """Return every list or mapping with each of its keys."""
    found: list[tuple[Any, Any]] = []
    waiting = deque([document])
    while waiting and len(found) < _MOST_NODES:
        holder = waiting.popleft()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, inner in items:
            found.append((holder, key))
            if isinstance(inner, list | dict):
                waiting.append(inner)
    return found


def _change(document: Any, random: Random) -> Any:
    holders = _holders(document)
    if not holders or random.random() < 0.005:
        return value(random)
    holder, key = random.choice(holders)
    old, kind = holder[key], random.random()
    if kind < 0.45:
        holder[key] = value(random)
    elif kind < 0.6:
        del holder[key]
    elif kind < 0.7:
        holder[key] = _retyped(old, random)
    elif kind < 0.8:
        other, name = random.choice(holders)
        holder[key], other[name] = other[name] if name in _keys(other) else None, old
        return _cut_cycles(document)
    elif kind < 0.9 and isinstance(holder, list):
        holder.extend([old] * random.choice((1, 2, 30)))
    elif isinstance(holder, dict):
        holder[token(random) if random.random() < 0.5 else f"{key}x"] = old
        if random.random() < 0.5:
            del holder[key]
    return document


def _keys(holder: Any) -> Any:
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


def _retyped(old: Any, random: Random) -> Any:
    if isinstance(old, bool) or old is None:
        return random.choice((0, 1, "true", [old], {"value": old}))
    if isinstance(old, int | float):
        return random.choice(
            (str(old), [old], {"value": old}, float(old) if abs(old) < 1e300 else 0.0, -old, bool(old))
        )
    if isinstance(old, str):
        return random.choice(([old], {"value": old}, old * 50, old.upper(), old[:-1], len(old), list(old[:50])))
    if isinstance(old, list):
        return random.choice((old[:1], old[::-1], old * 3, [old], dict(enumerate(map(str, range(len(old))))), len(old)))
    return random.choice(([old], [*map(list, old.items())], [*old], str(old)[:200], [*old.values()]))


def _cut_cycles(document: Any, above: tuple[int, ...] = ()) -> Any:
    """Return `document` with what holds itself, after two nodes changed places, put to nothing."""
    if not isinstance(document, list | dict):
        return document
    if id(document) in above or len(above) > 60:
        return None
    inside = (*above, id(document))
    for key in list(_keys(document)):
        inner = document[key]
        if isinstance(inner, list | dict):
            document[key] = _cut_cycles(inner, inside)
    return document


def _cut(content: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + random.choice((1, 1, 2, 5, 20, 200)))


def _flip(content: bytes, random: Random) -> bytes:
    start, _ = _cut(content, random)
    return content[:start] + bytes([random.randrange(256)]) + content[start + 1 :]


def _remove(content: bytes, random: Random) -> bytes:
    start, end = _cut(content, random)
    return content[:start] + content[end:]


def _repeat(content: bytes, random: Random) -> bytes:
    start, end = _cut(content, random)
    return content[:end] + content[start:end] * random.choice((1, 3, 100)) + content[end:]


def _insert(content: bytes, random: Random) -> bytes:
    start, _ = _cut(content, random)
    return content[:start] + token(random).encode("utf-8", "surrogatepass") + content[start:]


def _number(content: bytes, random: Random) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    place = random.choice(found)
    return content[: place.start()] + token(random).encode("utf-8", "surrogatepass") + content[place.end() :]


def _word(content: bytes, random: Random) -> bytes:
    found = list(re.finditer(rb"[\w.:>/-]+", content))
    if not found:
        return content
    place, other = random.choice(found), random.choice(found)
    new = other[0] if random.random() < 0.5 else token(random).encode("utf-8", "surrogatepass")
    return content[: place.start()] + new + content[place.end() :]


def _lines(content: bytes, random: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    first, second, kind = random.randrange(len(lines)), random.randrange(len(lines)), random.random()
    if kind < 0.3:
        del lines[first]
    elif kind < 0.6:
        lines[first], lines[second] = lines[second], lines[first]
    elif kind < 0.9:
        lines.insert(first, lines[second])
    else:
        lines[first] *= 50
    return b"".join(lines)


def _end(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


_ON_BYTES = (_flip, _remove, _repeat, _insert, _number, _number, _word, _word, _lines, _end)
