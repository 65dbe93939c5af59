"""What of Chakra's schema is written and read: a trace is a header and nodes, each behind its length as a varint.

Numbers of fields and values are those of mlcommons/chakra, schema/protobuf/et_def.proto (commit 6dc63e1, package
ChakraProtoMsg). What is left out here (storage, lists of numbers) protobuf carries along unread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from types import SimpleNamespace
from typing import Any

from ddpsim.common.errors import InputError, TraceError

VERSION = "0.0.4"
"""Of the schema, as mlcommons/chakra's own generators write it into the header."""

REMEDY = "install what Chakra's traces need: pip install 'ddpsim[chakra]'"

_MOST_LENGTH_BYTES = 10
"""Bytes of a varint at most, by protobuf's encoding."""


class NodeType(IntEnum):
    """What a node of a trace says is done; types that are not written here are read as what they are."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """A type of collective communication, the value of a node's `comm_type`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


Attribute = bool | int | float | str
"""A value of an attribute; numbers without a point are written as `int64`."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """What goes into a node or comes out of it, as the texts of the schema's `IOInfo`."""

    values: str = ""
    shapes: str = ""
    types: str = ""


@dataclass(slots=True)
class TraceNode:
    """A node of an execution trace.

    Attributes:
        control, data: ids of nodes that must have ended before it begins.
        start_us, duration_us: whole microseconds.
        attributes: by name.
    """

    id: int
    name: str
    type: int
    control: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    inputs: Tensors = field(default_factory=Tensors)
    outputs: Tensors = field(default_factory=Tensors)

    @property
    def communicates(self) -> bool:
        """Whether it sends or receives."""
        return self.type in (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)


def check_installed() -> None:
    """Refuse to go on without protobuf.

    Raises:
        InputError: it is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: F401
    except ImportError as error:
        raise InputError("protobuf cannot be imported", place="chakra", remedy=REMEDY) from error


def encode(header: Mapping[str, Attribute], nodes: Iterable[TraceNode]) -> bytes:
    """Return a trace as bytes.

    Raises:
        InputError: protobuf is not installed.
    """
    kinds = _messages()
    made = kinds.GlobalMetadata(version=VERSION)
    _set_attributes(made, header)
    parts = [_delimit(made.SerializeToString(deterministic=True))]
    for node in nodes:
        message = kinds.Node(**{field: getattr(node, name) for name, field in _NODE.items()})
        for side, tensors in (("inputs", node.inputs), ("outputs", node.outputs)):
            if tensors != Tensors():
                into = getattr(message, side)
                into.values, into.shapes, into.types = tensors.values, tensors.shapes, tensors.types
        _set_attributes(message, node.attributes)
        parts.append(_delimit(message.SerializeToString(deterministic=True)))
    return b"".join(parts)


def decode(data: bytes, place: str) -> tuple[dict[str, Attribute], list[TraceNode]]:
    """Return the attributes of a trace's header, and its nodes.

    Raises:
        InputError: protobuf is not installed.
        TraceError: bytes that are no trace of this schema; `place` and the byte are named.
    """
    kinds = _messages()
    pieces = _pieces(data, place)
    header = kinds.GlobalMetadata()
    _, first = next(pieces, (0, b""))
    _parse(header, first, place, 0)
    if not header.version:
        raise TraceError("has no version of Chakra's schema in its header", place=place, remedy=_NO_TRACE)
    nodes = []
    for offset, piece in pieces:
        message = kinds.Node()
        _parse(message, piece, place, offset)
        tensors = [Tensors(each.values, each.shapes, each.types) for each in (message.inputs, message.outputs)]
        read = {name: getattr(message, field) for name, field in _NODE.items()}
        read |= {"control": tuple(message.ctrl_deps), "data": tuple(message.data_deps)}
        nodes.append(TraceNode(**read, attributes=_attributes(message), inputs=tensors[0], outputs=tensors[1]))
    return _attributes(header), nodes


_NODE = {
    "id": "id", "name": "name", "type": "type", "control": "ctrl_deps", "data": "data_deps",
    "start_us": "start_time_micros", "duration_us": "duration_micros",
}  # fmt: skip
"""Fields of a `TraceNode`, and of the schema's."""
_NO_TRACE = "give a Chakra execution trace of one rank, NAME.RANK.et"


def _pieces(data: bytes, place: str) -> Iterator[tuple[int, bytes]]:
    """Yield each message of a file with where it begins."""
    position = 0
    while position < len(data):
        begun, length, shift = position, 0, 0
        while True:
            if position >= len(data) or shift >= 7 * _MOST_LENGTH_BYTES:
                raise TraceError(f"no length of a message at byte {begun}", place=place, remedy=_NO_TRACE)
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if position + length > len(data):
            what = f"a message of {length} bytes at byte {begun}, the file has {len(data) - position} more"
            raise TraceError(what, place=place, remedy=_NO_TRACE)
        yield begun, data[position : position + length]
        position += length


def _parse(message: Any, data: bytes, place: str, offset: int) -> None:
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except DecodeError as error:
        what = f"no message of Chakra's schema at byte {offset}: {error}"
        raise TraceError(what, place=place, remedy=_NO_TRACE) from error


def _delimit(data: bytes) -> bytes:
    length, head = len(data), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


def _set_attributes(message: Any, attributes: Mapping[str, Attribute]) -> None:
    for name, value in attributes.items():
        # A bool is an int to Python.
        kind = "bool" if isinstance(value, bool) else {int: "int64", float: "double", str: "string"}[type(value)]
        message.attr.add(name=name, **{f"{kind}_val": value})


def _attributes(message: Any) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for each in message.attr:
        kind = each.WhichOneof("value")
        if kind is not None:
            found[each.name] = getattr(each, kind)
    return found


_SCALARS = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15, "sint64": 17,
    "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27, "string": 29,
}  # fmt: skip
"""Numbers of the fields of an attribute's value, by their types."""

_FIELDS = {
    "GlobalMetadata": (("version", 1, "string", ""), ("attr", 2, "AttributeProto", "repeated")),
    "IOInfo": (("values", 1, "string", ""), ("shapes", 2, "string", ""), ("types", 3, "string", "")),
    "Node": (
        ("id", 1, "uint64", ""),
        ("name", 2, "string", ""),
        ("type", 3, "int32", ""),  # an enum, which is encoded as an int32; read as a number, none is unknown
        ("ctrl_deps", 4, "uint64", "repeated"),
        ("data_deps", 5, "uint64", "repeated"),
        ("start_time_micros", 6, "uint64", ""),
        ("duration_micros", 7, "uint64", ""),
        ("inputs", 8, "IOInfo", ""),
        ("outputs", 9, "IOInfo", ""),
        ("attr", 10, "AttributeProto", "repeated"),
    ),
    "AttributeProto": (
        ("name", 1, "string", ""),
        ("doc_string", 2, "string", ""),
        *((f"{kind}_val", number, kind, "value") for kind, number in _SCALARS.items()),
    ),
}
"""Of each message its fields: name, number, type, and whether it is repeated or one of the alternatives `value`."""


def _messages() -> Any:
    """Return the classes of the schema's messages, built once from `_FIELDS`: no generated module has to be shipped.

    Raises:
        InputError: protobuf is not installed.
    """
    check_installed()
    return _made_messages()


@cache
def _made_messages() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, type_name, way in fields:
            made = message.field.add(name=field_name, number=number)
            made.label = kind.LABEL_REPEATED if way == "repeated" else kind.LABEL_OPTIONAL
            if type_name in _FIELDS:
                made.type, made.type_name = kind.TYPE_MESSAGE, f".ChakraProtoMsg.{type_name}"
            else:
                made.type = getattr(kind, f"TYPE_{type_name.upper()}")
            if way == "value":
                made.oneof_index = 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
            for name in _FIELDS
        }
    )
