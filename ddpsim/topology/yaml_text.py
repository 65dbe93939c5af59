"""A topology's YAML written: short inner values on one line."""

from __future__ import annotations

import yaml

_WIDTH, _SHORT = 110, 110
"""Characters of a line, and of a mapping that is written on one."""


class _FlowStyle(list[object]):
    """A list written on one line."""


class _FlowMapping(dict[str, object]):
    """A mapping written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes short inner values on one line, so that a machine fits on a page."""


_Dumper.add_representer(
    _FlowStyle, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)
_Dumper.add_representer(
    _FlowMapping, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)
)


def write_mapping(document: dict[str, object]) -> str:
    """Return `document` as YAML, keys in their order, short inner values on one line."""
    flowed = {key: _write_flow(value) for key, value in document.items()}
    return yaml.dump(flowed, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _write_flow(value: object) -> object:
    if isinstance(value, dict):
        inner = {key: _write_flow(item) for key, item in value.items()}
        short = len(repr(value)) < _SHORT and not any(_has_text(item) for item in value.values())
        return _FlowMapping(inner) if short else inner
    if isinstance(value, list):
        if any(isinstance(item, dict) or _has_text(item) for item in value):
            return [_write_flow(item) for item in value]
        return _FlowStyle([_FlowStyle(item) if isinstance(item, list) else item for item in value])
    return value


def _has_text(value: object) -> bool:
    return isinstance(value, str) and " " in value
