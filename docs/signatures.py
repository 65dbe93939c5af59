"""For the site: show the type of an option without what the command line knows of it.

Fields of the option classes are `Annotated[float | None, Option("One cap for every bucket, ...", "C")]`; a reader of
the Python pages needs `float | None`.
"""

from __future__ import annotations

from typing import Any

import griffe


class PlainTypes(griffe.Extension):
    """Replace `Annotated[X, ...]` by `X` in attributes and parameters."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Simplify the type of a field."""
        attr.annotation = plain(attr.annotation)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Simplify the types of a function's parameters."""
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)


def plain(annotation: Any) -> Any:
    """Return `X` of `Annotated[X, ...]`, and anything else as it is."""
    if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_name == "Annotated":
        inside = annotation.slice
        return inside.elements[0] if isinstance(inside, griffe.ExprTuple) else inside
    return annotation
