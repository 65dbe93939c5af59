"""`ddpsim doctor`: the abilities of this machine, each with a command that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpsim.common.finding import Finding


@expand
def doctor(output: Output) -> None:
    """Say what this machine and this torch can do, each line with the command that proves it.

    Whatever it finds, it exits with 0. What needs torch is asked of `python -m ddpexec doctor`, in its own process.
    """
    from ddpsim.cli.machine_findings import findings

    listed = list(findings())
    output.emit({"findings": [each.document() for each in listed]}, lambda: text_of(listed))


def text_of(listed: Sequence[Finding]) -> str:
    """Return findings as text: a line each, below it what proves it and what would help."""
    width = max((len(each.name) for each in listed), default=0)
    lines = []
    for each in listed:
        lines.append(f"{each.able:<8}{each.name:<{width}}  {each.found}")
        lines.append(f"{'':8}{'':{width}}  $ {each.proof}")
        if each.remedy:
            lines.append(f"{'':8}{'':{width}}  {each.remedy}")
    return "\n".join(lines)
