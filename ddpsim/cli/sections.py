"""A command's help in the sections that its options are declared in."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from ddpsim.cli.plain_values import PlainHelp
from ddpsim.options.option import Section

_FEWEST = 20
"""Options of a command that are shown in sections; fewer fit on a screen. Chosen by hand."""
_ARGUMENTS = "Arguments"
_FIRST = "Options"
"""What an option stands under that names no section."""


class SectionedCommand(PlainHelp, TyperCommand):
    """Show the options of a command that has many in sections, in the order of `Section`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options with their help into click's `formatter`."""
        params = self.get_params(ctx)
        if len(params) < _FEWEST:
            super().format_options(ctx, formatter)
            return
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in (_ARGUMENTS, _FIRST, *Section)}
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                rows[_section_of(param)].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def _section_of(param: Any) -> str:
    """Return the section of a parameter; click itself declares `--help`."""
    if param.param_type_name == "argument":
        return _ARGUMENTS
    return Section.OUTPUT if param.name == "help" else getattr(param, "rich_help_panel", None) or _FIRST
