"""`python -m ddpexec campaign`: predictions written first, runs after, both held against each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def campaign(
    file: Annotated[Path, typer.Argument(help="The campaign: networks, and runs on them.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for everything; what is there already is kept.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
) -> None:
    """Predict, run and validate a list of configurations on lab networks; go on where an interrupted one stopped."""
    from ddpexec.campaign.campaign import carry_out
    from ddpexec.campaign.report import markdown
    from ddpexec.campaign.results import summarised
    from ddpexec.campaign.spec import load_campaign

    plan = load_campaign(file)
    results, failures = carry_out(plan, out, lambda line: print(line, file=sys.stderr, flush=True))
    summary = summarised(results)
    print(json.dumps(summary, indent=2) if json_ else markdown(plan.name, summary, results).rstrip())
    if failures:
        print("\n".join(failures), file=sys.stderr)
        raise typer.Exit(1)
