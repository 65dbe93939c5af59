"""The command line: one file a command group; it prints and exits, nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `ddpsim` and exit: 0, 1 where a bound is exceeded, 2 on bad input."""
    from ddpsim.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
