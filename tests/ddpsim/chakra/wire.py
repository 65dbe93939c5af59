"""A reader of protobuf's wire format and of the published schema's field numbers, without protobuf and without us.

Wire format: protobuf.dev/programming-guides/encoding. Numbers: mlcommons/chakra, schema/protobuf/et_def.proto at commit
6dc63e1.
"""

import struct
from collections.abc import Iterator
from typing import Any

COMP, SEND, RECV, COLL, METADATA = 4, 5, 6, 7, 1
ALL_REDUCE, ALL_GATHER, BROADCAST, REDUCE_SCATTER = 0, 2, 5, 7


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 1:
            yield tag >> 3, struct.unpack("<d", data[at : at + 8])[0]
            at += 8
        else:
            assert tag & 7 == 2, tag
            length, at = varint(data, at)
            yield tag >> 3, data[at : at + length]
            at += length
    assert at == len(data)


def numbers(value: Any) -> list[int]:
    """Return a repeated number's values, packed or one by one."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = varint(value, at)
        found.append(one)
    return found


def attribute(data: bytes) -> tuple[str, Any]:
    found = dict(fields(data))
    name = found.pop(1).decode()
    [(number, value)] = found.items()
    return name, {3: float, 9: int, 27: bool, 29: lambda text: text.decode()}[number](value)


def node(data: bytes) -> dict[str, Any]:
    read: dict[str, Any] = {"id": 0, "name": "", "type": 0, "deps": [], "duration": 0, "attr": {}, "inputs": {}}
    for number, value in fields(data):
        if number == 1:
            read["id"] = value
        elif number == 2:
            read["name"] = value.decode()
        elif number == 3:
            read["type"] = value
        elif number in (4, 5):
            read["deps"] += numbers(value)
        elif number == 7:
            read["duration"] = value
        elif number == 8:
            read["inputs"] = {part: text.decode() for part, text in fields(value)}
        elif number == 10:
            name, attr = attribute(value)
            read["attr"][name] = attr
    return read


def read_trace(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the nodes of a file: messages behind their lengths."""
    pieces, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        pieces.append(data[at : at + length])
        at += length
    header: dict[str, Any] = {}
    for number, value in fields(pieces[0]):
        if number == 1:
            header["version"] = value.decode()
        else:
            name, attr = attribute(value)
            header[name] = attr
    return header, [node(piece) for piece in pieces[1:]]
