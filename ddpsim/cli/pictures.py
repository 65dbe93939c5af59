"""`--plot`: where a command draws to."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import typer

from ddpsim.errors import InputError


def plot_option(help_text: str) -> Any:
    """Return the option `--plot FILE.png`; any other ending is refused before the command starts."""
    return typer.Option("--plot", metavar="FILE.png", help=help_text, callback=_png)


def _png(path: str | None) -> str | None:
    if path is not None and PurePath(path).suffix.lower() != ".png":
        raise InputError(f"{path!r} does not end in .png", place="plot", remedy="pictures are PNG: name it FILE.png")
    return path
