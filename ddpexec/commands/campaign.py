"""`python -m ddpexec campaign`: predictions written first, runs after, both held against each other."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.expand import expand
from ddpsim.cli.output import JsonDocument, write

if TYPE_CHECKING:
    from ddpexec.lab.campaign.spec import Campaign


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignArguments:
    """What `campaign` is asked: its file, which part of it, and what is packed or unpacked."""

    file: Annotated[Path, typer.Argument(help="The campaign: networks, and runs on them.")]
    out: Annotated[Path, typer.Option("--out", help="Folder for everything; what is there already is kept.")]
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Run configurations of this name, or that fit it (*, ?)."),
    ] = None
    pack: Annotated[
        Path | None,
        typer.Option("--pack", metavar="RECORD", help="Run nothing; reduce what is in --out to a record to keep."),
    ] = None
    unpack: Annotated[
        Path | None,
        typer.Option("--unpack", metavar="RECORD", help="Run nothing; write what a record was made of to --out."),
    ] = None
    interleave: Annotated[
        bool, typer.Option("--interleave", help="Let runs take turns with one process, as `interleave: true` in FILE.")
    ] = False
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Import and run the functions that FILE names as schemes.")
    ] = False
    json_: JsonDocument = False


@expand
def campaign(
    arguments: CampaignArguments,
) -> None:
    """Predict, run and validate a list of configurations on lab networks; go on where an interrupted one stopped.

    A configuration that fails is named at the end, does not stop the others, and makes the exit code 1.
    """
    from ddpexec.lab.campaign.campaign import carry_out, find_finished
    from ddpexec.lab.campaign.report import markdown
    from ddpexec.lab.campaign.results import summarise_results
    from ddpexec.lab.campaign.spec import load_campaign
    from ddpsim.common.files import check_writable_folder
    from ddpsim.common.stopping import Stopped, stop_on_signals

    plan = load_campaign(arguments.file)
    if arguments.interleave:
        turned = tuple(replace(each, interleave=True) for each in plan.configurations)
        plan = replace(plan, configurations=turned)
    if arguments.pack is not None or arguments.unpack is not None:
        _keep(plan, arguments.file, arguments.out, arguments.pack, arguments.unpack)
        return
    check_writable_folder(arguments.out)
    try:
        with stop_on_signals():
            results, failures = carry_out(
                plan, arguments.out, _say, arguments.only or (), trust_code=arguments.trust_code
            )
    except Stopped as stopped:
        count = sum(find_finished(each, arguments.out) is not None for each in plan.configurations)
        _say(
            f"campaign: stopped by {stopped} with {count} of {len(plan.configurations)} configurations done; "
            "the same command goes on from there"
        )
        raise typer.Exit(128 + stopped.number) from None
    summary = summarise_results(results)
    write(json.dumps(summary, indent=2) if arguments.json_ else markdown(plan.name, summary, results).rstrip())
    if failures:
        _say("\n  ".join([f"{len(failures)} of {len(plan.configurations)} configurations failed:", *failures]))
        raise typer.Exit(1)


def _keep(plan: Campaign, file: Path, out: Path, target: Path | None, source: Path | None) -> None:
    from ddpexec.lab.campaign.record import pack, unpack

    if source is not None:
        unpack(source, out)
    if target is not None and (missing := pack(file, plan, out, target)):
        _say(f"{len(missing)} of {len(plan.configurations)} configurations have no result and are left out:")
        _say("\n".join(f"  {name}" for name in missing))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
