"""HTML from Jinja2's templates, which escape every text, so that no name of a file or model becomes markup."""

from ddpsim.common.markup.tables import SCREEN, summary_card, table
from ddpsim.common.markup.templates import Markup, call_macro, render_template

__all__ = ["SCREEN", "Markup", "call_macro", "render_template", "summary_card", "table"]
