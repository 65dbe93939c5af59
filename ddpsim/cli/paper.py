"""`ddpsim paper`: the study of DDP's paper, where the checkout that has it is."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from ddpsim.common.errors import InputError


def paper(context: typer.Context) -> None:
    """Reproduce the evaluation of Li et al., "PyTorch Distributed" (VLDB 2020): `python -m studies.paper`."""
    if find_spec("studies") is None:
        remedy = "clone the repository, and run `python -m studies.paper` or this command in it"
        raise InputError("the study of the paper is not installed with ddpsim", remedy=remedy)
    raise typer.Exit(import_module("studies.paper.__main__").main(context.args))
