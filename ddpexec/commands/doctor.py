"""`python -m ddpexec doctor`: what real runs find on this machine."""

from __future__ import annotations

from ddpsim.cli.doctor import text_of
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output


@expand
def doctor(output: Output) -> None:
    """Say what this torch and this machine can do for real runs; `ddpsim doctor` says it with the rest."""
    from ddpexec.commands import torch_findings
    from ddpexec.lab import findings as labs

    findings = [*torch_findings.findings(), *labs.findings()]
    output.emit({"findings": [each.document() for each in findings]}, lambda: text_of(findings))
