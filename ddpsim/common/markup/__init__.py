"""HTML from Jinja2's templates, which escape every text, so that no name of a file or model becomes markup."""

from ddpsim.common.markup.templates import SCREEN, Markup, call_macro, render_template, summary_card, table

__all__ = ["SCREEN", "Markup", "call_macro", "render_template", "summary_card", "table"]
