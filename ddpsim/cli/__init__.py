"""The command line: one file a command group; it prints and exits, nothing else does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from ddpsim.stopping import end_on_interrupt

YOUNG = 50_000
"""Objects after whose making garbage is looked for, 700 unless told; a simulation's are tens of megabytes at most."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `ddpsim` and exit: 0, 1 where a bound is exceeded, 2 on bad input."""
    own = arguments is None  # this process is the command's
    if own:
        gc.disable()
        end_on_interrupt()
    from ddpsim.cli.app import command_for, named_in, run

    arguments = sys.argv[1:] if arguments is None else arguments
    if own:
        command_for(named_in(arguments))
        gc.freeze()  # what was imported stays to the end
        gc.set_threshold(YOUNG)
        gc.enable()
    sys.exit(run(arguments))
