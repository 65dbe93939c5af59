"""`python -m ddpexec demo`: buckets planned for five machines, then predictions held against real runs here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ddpsim.cli.output import JsonDocument


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for plans, predictions, runs and pictures.")],
    json_: JsonDocument = False,
) -> None:
    """Plan buckets of two models on five machines, then hold predictions against steps that run here.

    With --json only the second half. OUT/commands.txt keeps every command. Takes three minutes on two quiet cores.
    """
    from ddpexec.lab.demo.output import Commands, silenced
    from ddpexec.lab.demo.planned import plan_ahead
    from ddpexec.lab.demo.real import NEXT, hold_against_a_real_run
    from ddpsim.cli.output import write
    from ddpsim.common.files import check_writable_folder, json_text

    check_writable_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    commands, started = Commands(out / "commands.txt"), time.monotonic()
    with silenced(json_):
        if not json_:
            plan_ahead(out)
        document = hold_against_a_real_run(out, commands)
    (out / "demo.json").write_text(json_text(document))
    if json_:
        write(json_text(document).rstrip())
        return
    write(f"\nIn {time.monotonic() - started:.0f} s; pictures, tables and every command are in {out}. What next:")
    write(NEXT)
