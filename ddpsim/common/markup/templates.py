"""The templates of pages, and how they are filled in: text is escaped, `Markup` is not."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Markup", "call_macro", "render_template"]


def render_template(name: str, **values: Any) -> Markup:
    """Return a template of `pages` with these values; one that a template needs and is not given is an error."""
    return Markup(_environment().get_template(name).render(values))


def call_macro(template: str, name: str, *values: Any) -> Markup:
    """Return what a macro of a template makes of these values."""
    return Markup(getattr(_environment().get_template(template).module, name)(*values))


@cache
def _environment() -> Environment:
    # Jinja2 takes as long to import as a small prediction, and most commands write no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ddpsim.common.markup", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made
