"""`python -m ddpexec demo`: buckets planned for five machines, then a prediction held against a real run here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for plans, predictions, runs and pictures.")],
) -> None:
    """Plan buckets of two models on five machines, then train one model here and hold the prediction against it.

    Every command of the second half is shown before it runs. Takes three minutes on two quiet cores.
    """
    from ddpexec.demo.planned import plan_ahead
    from ddpexec.demo.real import hold_against_a_real_run
    from ddpexec.demo.saying import say
    from ddpsim.files import check_writable_folder

    check_writable_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    plan_ahead(out)
    say(f"part 1 took {time.monotonic() - started:.0f} s")
    middle = time.monotonic()
    hold_against_a_real_run(out)
    say(f"part 2 took {time.monotonic() - middle:.0f} s; everything is in {out}")
