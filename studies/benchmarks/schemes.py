"""What our schedules gain over torch's DDP on a shaped network: `python -m studies.benchmarks.schemes --out DIR`.

The model is equal layers of 1 MiB whose forward takes half of backward, as timed layers, where the bytes of all
gradients take so many times backward on the wire. Stock torch runs with its default buckets and with uniform caps, our
executor with schedules. It is a campaign: each network is measured, every step is predicted before it is run, and the
same command goes on where it was stopped. A gain is torch's median step over the schedule's, with a 95 % interval.
Needs what `campaign` needs: Linux and root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from ddpexec.lab.campaign.campaign import carry_out
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Campaign, Configuration, load_campaign
from ddpsim.bucketing import Parameter
from ddpsim.common.files import write_whole
from ddpsim.trace.json import read_trace
from ddpsim.workload import Phase, Workload
from ddpsim.workload.files import save_workload
from ddpsim.workload.profile import ForwardUse

LAYERS, LAYER_BYTES = 64, 1 << 20
BACKWARD_S, FORWARD_SHARE, OPTIMIZER_S = 0.36, 0.5, 4e-3
"""Of the unscaled model: backward of two ranks at 1 Gbit/s and 1.5 of it on the wire, and about SGD's time here."""
RESAMPLES = 2000

Runs = Mapping[str, tuple[Configuration, Result]]


def equal_layers() -> Workload:
    """Return a step of `LAYERS` equal layers, whose forward needs them as evenly as backward makes their gradients."""
    forward_s, places = BACKWARD_S * FORWARD_SHARE, np.arange(LAYERS)
    ready_s = BACKWARD_S * (LAYERS - places[None, :]) / LAYERS
    use_s = forward_s * places / LAYERS
    forward, backward, optimizer = (
        Phase(np.array([seconds]), np.array([seconds])) for seconds in (forward_s, BACKWARD_S, OPTIMIZER_S)
    )
    return Workload(
        name=f"equal{LAYERS}",
        device="cpu",
        precision="fp32",
        batch_size=1,
        threads=1,
        estimated=True,
        parameters=tuple(Parameter(f"layer{place}.weight", (LAYER_BYTES // 4,)) for place in range(LAYERS)),
        buffers=(),
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        gradient_hook_s=ready_s,
        gradient_ready_s=ready_s,
        forward_use_s=ForwardUse(use_s, use_s),
    )


def written(arguments: argparse.Namespace) -> Campaign:
    """Write the workload and the campaign's file, and return the campaign."""
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    workload = folder / f"equal{LAYERS}.json.gz"
    save_workload(equal_layers(), workload)
    runs = []
    for ranks in arguments.ranks:
        for ratio in arguments.ratios:
            common = {"network": f"ranks{ranks}", "workload": str(workload), "wire_over_backward": ratio}
            runs.append({**common, "vary": {"bucket_cap_mb": [None, *arguments.caps]}})
            runs.append(
                {**common, "impl": "ddpexec", "bucket_cap_mb": arguments.cap, "vary": {"scheme": arguments.schemes}}
            )
    document = {
        "name": "gains",
        "iterations": arguments.iterations,
        "repeats": arguments.repeats,
        "microbench": {"minbytes": "64K", "maxbytes": "64M", "stepfactor": 4},
        "networks": {f"ranks{ranks}": {"ranks": ranks, "rate": arguments.rate} for ranks in arguments.ranks},
        "runs": runs,
    }
    path = folder / "gains.yaml"
    write_whole(path, yaml.safe_dump(document, sort_keys=False))
    return load_campaign(path)


def steps(folder: Path, configuration: Configuration) -> list[float]:
    """Return the steps of all runs of a configuration: in each those of the rank with the longest median."""
    found: list[float] = []
    for repeat in range(configuration.repeats):
        trace = read_trace(folder / "runs" / configuration.name / f"run{repeat}")
        by_rank = [[it.end_s - it.start_s for it in trace.of_rank(rank)] for rank in trace.ranks]
        slowest = max(by_rank, key=lambda taken: float(np.median(taken)))
        found += slowest
    return found


def gain(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return the ratio of the medians and its 95 % interval, a percentile bootstrap over steps."""
    generator = np.random.default_rng(0)
    drawn = [np.median(generator.choice(np.array(each), (RESAMPLES, len(each))), axis=1) for each in (theirs, ours)]
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return f"{np.median(theirs) / np.median(ours):.2f} [{low:.2f}, {high:.2f}]"


def table(campaign: Campaign, results: Sequence[Result], folder: Path) -> Iterator[str]:
    """Yield a row for each number of ranks and share of the wire; steps in ms, `/` before what was predicted."""
    yield (
        "| ranks | wire / backward | torch's default, ms / predicted | torch's best cap | best schedule "
        "| gain over default / predicted | over best cap / predicted |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    by_name = {result.name: result for result in results}
    groups: dict[tuple[int, float], list[tuple[Configuration, Result]]] = {}
    for each in campaign.configurations:
        if each.name in by_name:
            place = each.network.ranks, each.run.wire_over_backward or 0.0
            groups.setdefault(place, []).append((each, by_name[each.name]))
    for (ranks, ratio), group in groups.items():
        cells = _cells(group, folder)
        if cells:
            yield f"| {ranks} | {ratio:g} | {' | '.join(cells)} |"


def _cells(group: Sequence[tuple[Configuration, Result]], folder: Path) -> list[str]:
    stock = [pair for pair in group if pair[0].run.options["implementation"] == "torch"]
    capped = [pair for pair in stock if pair[0].run.options["bucket_cap_mb"] is not None]
    scheduled = [pair for pair in group if pair[0].run.options["implementation"] != "torch"]
    default = next((pair for pair in stock if pair[0].run.options["bucket_cap_mb"] is None), None)
    if default is None or not scheduled:
        return []
    ours = min(scheduled, key=lambda pair: pair[1].step_s)
    cells = [_step(default[1]), "-", f"{ours[0].scheme}, {_step(ours[1])}", _gain(default, ours, folder), "-"]
    if capped:
        best = min(capped, key=lambda pair: pair[1].step_s)
        cells[1] = f"{best[0].run.options['bucket_cap_mb']:g} MiB, {_step(best[1])}"
        cells[4] = _gain(best, ours, folder)
    return cells


def _step(result: Result) -> str:
    return f"{result.step_s * 1e3:.0f} / {result.predicted_s * 1e3:.0f}"


def _gain(theirs: tuple[Configuration, Result], ours: tuple[Configuration, Result], folder: Path) -> str:
    predicted = theirs[1].predicted_s / ours[1].predicted_s
    return f"{gain(steps(folder, theirs[0]), steps(folder, ours[0]))} / {predicted:.2f}"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="everything is kept here, and taken up again")
    parser.add_argument("--ranks", type=_integers, default=[2, 4])
    parser.add_argument("--ratios", type=_numbers, default=[1.2, 1.5, 2.0], help="wire over backward")
    parser.add_argument("--caps", type=_numbers, default=[1.0, 2.0, 4.0, 10.0], help="uniform caps of torch's, MiB")
    parser.add_argument("--schemes", type=_names, default=["priority", "dear"])
    parser.add_argument("--cap", type=float, default=1.0, help="of the schedules' buckets, MiB")
    parser.add_argument("--rate", default="1gbit", help="of a rank's link")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, in processes of their own")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return text.split(",")


def _integers(text: str) -> list[int]:
    return list(map(int, _names(text)))


def _numbers(text: str) -> list[float]:
    return list(map(float, _names(text)))


def main() -> None:
    """Run what is missing and print the table."""
    arguments = parsed()
    campaign = written(arguments)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    results, failures = carry_out(campaign, arguments.out, progress)
    for line in table(campaign, results, arguments.out):
        print(line)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
