"""What compressing gradients is worth: a part of order-findings.md.

python -m studies.orders.codec_findings           # break-evens and published gains anew, into codec_findings.json
python -m studies.orders.codec_findings TABLE     # encoding costs alone, from what `ddpexec microbench` wrote
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.codec_priors import CODECS
from ddpsim.common.files import json_text, write_whole
from ddpsim.planning.break_even import FASTEST
from ddpsim.planning.codec_break_even import SCHEMES, codec_rows
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.link_rates import NIC, with_link_rate
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from studies.command import parser

KEPT = Path(__file__).with_name("codec_findings.json")
LOSSES = Path(__file__).with_name("codec_losses.json")
MACHINES = (("p3.8xlarge", "v100-fp32"), ("p3dn.24xlarge", "v100-fp32"), ("dgx-a100", "a100-amp"))
MODELS = ("resnet50@{}-b32", "bert-base@{}-b32")
NODES = 4


@dataclass(frozen=True)
class Published:
    """A published gain is a job with a scheme, what it gained, and who says so.

    Attributes:
        gain: of throughput, as published: 0.5 is half as much again.
        differs: in what the prediction differs from the job.
        scaled: of scaling over one GPU instead, how many times as fast as one.
    """

    what: str
    workload: str
    machine: str
    nodes: int
    gpus: int
    scheme: str
    published: str
    source: str
    differs: str
    rate: float | None = None
    scaled: bool = False


_HOOK = "[pytorch issue 74148](https://github.com/pytorch/pytorch/issues/74148)"
_BYTEPS = "[BytePS-Compress](https://zhuanzhi.ai/paper/11dcb2fc535d1a26f28f11c623f7d49f)"
_ADAM = "[1-bit Adam](https://www.deepspeed.ai/2020/09/08/onebit-adam-news.html)"
_UTILITY = (
    "[Agarwal et al., MLSys 2022]"
    "(https://proceedings.mlsys.org/paper_files/paper/2022/hash/773862fcc2e29f650d68960ba5bd1101-Abstract.html)"
)
_BATCH = "batch, precision and rank are not stated: 32, fp32, 1"
_UNSAID = "which of their setups gain, the abstract does not say"
_SERVERS = "two-way compression on servers' CPUs, Adam, nodes not stated: four; here signs are gathered"
PUBLISHED = (
    *(
        Published(f"ResNet-50, {2 * n} V100 on {n} nodes, 3 Gb/s, torch's hook", "resnet50@v100-fp32-b32", "p3.8xlarge",
                  n, 2, "powersgd:1", f"{times} times one GPU", _HOOK, _BATCH, rate=0.375e9, scaled=True)
        for n, times in ((2, 3.5), (3, 5.23), (4, 5.46))
    ),
    *(
        Published(f"{name}, V100, 25 Gb/s", f"{model}@v100-fp32-b32", "p3.16xlarge", 4, 8, "onebit", gain, _BYTEPS,
                  _SERVERS)
        for name, model, gain in (("ResNet-50", "resnet50", "+5.0 %"), ("VGG-16", "vgg16", "+58.1 %"),
                                  ("BERT-base", "bert-base", "+23.3 %"))
    ),
    Published("BERT-large, limited bandwidth", "bert-large@v100-fp32-b8", "p3.8xlarge", 8, 4, "onebit", "up to +250 %",
              _ADAM,
              "an optimizer of its own with two-way messages that do not grow with ranks; 10 Gb/s are ours"),
    Published("ResNet-50, data centre of 10 Gb/s", "resnet50@v100-fp32-b32", "p3.8xlarge", 8, 4, "powersgd:4",
              "gains in 6 of over 200 setups", _UTILITY, _UNSAID),
    Published("BERT-base, data centre of 10 Gb/s", "bert-base@v100-fp32-b32", "p3.8xlarge", 8, 4, "powersgd:4",
              "gains in 6 of over 200 setups", _UTILITY, _UNSAID),
    Published("BERT-base, data centre of 10 Gb/s", "bert-base@v100-fp32-b32", "p3.8xlarge", 8, 4, "onebit",
              "gains in 6 of over 200 setups", _UTILITY, _UNSAID),
)  # fmt: skip


def of_machine(task: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return the break-evens of one model on one machine."""
    machine, gpu, model = task
    name = model.format(gpu)
    rows = codec_rows(Answers(), Job(load_workload(name), load_topology(machine), NODES), SCHEMES)
    return [{"workload": name, **row.document()} for row in rows]


def of_published(number: int) -> dict[str, Any]:
    """Return what is predicted of a published gain."""
    case = PUBLISHED[number]
    machine = load_topology(case.machine)
    wired = machine if case.rate is None else with_link_rate(machine, NIC, case.rate)

    def made(scheme: str) -> Any:
        asked = Options(compression=scheme)
        job = Job(load_workload(case.workload), wired, case.nodes, case.gpus, options=asked)
        return predict(job, band=False)

    plain, coded = made("none"), made(case.scheme)
    ranks = case.nodes * case.gpus
    return {
        "plain_s": plain.iteration_s,
        "step_s": coded.iteration_s,
        "times": ranks * coded.scaling_efficiency,
        "plain_times": ranks * plain.scaling_efficiency,
    }


def encoding(table: Path) -> list[dict[str, Any]]:
    """Return measured constants of encoding beside their priors."""
    measured: Mapping[str, float] = json.loads(table.read_text())["ddp"]
    priors = Calibration.priors("gloo").constants
    return [
        {
            "codec": codec,
            **{key: measured[f"{codec}_{key}"] for key in ("kernel_s", "Bps")},
            **{f"prior_{key}": priors[f"gloo.ddp.{codec}_{key}"].value for key in ("kernel_s", "Bps")},
        }
        for codec in CODECS
    ]


def lines(kept: Mapping[str, Any], losses: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section."""
    yield from _encoding(kept.get("encoding", []))
    yield from _break_evens(kept["break_even"])
    yield from _published(kept["published"])
    yield from _losses(losses)


def _encoding(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield (
        "**What encoding costs.** `microbench` runs the hooks on a group of each rank alone and fits a time a "
        "kernel and a rate of bytes read and written; `ddpsim calibrate` carries both. On a core of the lab, "
        "two ranks at once, beside what copies tell:"
    )
    yield ""
    yield "| codec | us a kernel | prior | GB/s | prior | 25 MiB, 12 gradients: measured / prior |"
    yield "|---|--:|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| {row['codec']} | {1e6 * row['kernel_s']:.1f} | {1e6 * row['prior_kernel_s']:.1f} | "
            f"{row['Bps'] / 1e9:.1f} | {row['prior_Bps'] / 1e9:.1f} | {_longer(row):.1f} |"
        )
    yield ""


def _longer(row: Mapping[str, Any]) -> float:
    """Return by which factor a bucket of torch's default size takes longer than its prior says."""
    from ddpsim.bucketing import Parameter
    from ddpsim.schedules import compression

    named = {"powersgd": "powersgd:4", "topk": "topk:0.01", "adaptive": "adaptive:8"}
    scheme = compression.scheme(named.get(row["codec"], row["codec"]))
    work = compression.work(scheme, [Parameter("", (739, 739))] * 12, 1)
    measured, prior = (
        compression.Roofline(row[f"{key}kernel_s"], row[f"{key}Bps"]).time_s(work) for key in ("", "prior_")
    )
    return measured / prior


def _break_evens(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        f"**Break-even bandwidths.** `ddpsim compression --workload W --topology T --nodes {NODES}`: the rate of a NIC "
        "below which a scheme makes the step shorter, with its 80 % band, of which encoding at its prior is a large "
        "part; and what it gains at the machine's own rate. Losses are another matter, below."
    )
    yield ""
    yield "| machine | model | scheme | fewer bytes | plain ms | gain | pays below, Gb/s |"
    yield "|---|---|---|--:|--:|--:|---|"
    for row in rows:
        rate = row["rate_Bps"]
        pays = row["why"] if rate is None else f"{8e-9 * rate:.3g} ({_gbit(row, 'low')} to {_gbit(row, 'high')})"
        yield (
            f"| {row['machine']} | {row['workload'].partition('@')[0]} | `{row['scheme']}` | {row['ratio']:.1f} | "
            f"{1e3 * row['plain_s']:.1f} | {row['gain']:+.1%} | {pays} |"
        )
    yield ""
    yield (
        "Over NICs of 10 Gb/s (`p3.8xlarge`) all pay but `adaptive:8`, whose gathered bytes grow with the ranks; at "
        "100 Gb/s (`p3dn.24xlarge`) half precision, low rank and top-k gain 1 to 15 % and signs lose 2 to 4 %; with "
        "eight NICs of 200 Gb/s a node (`dgx-a100`) nothing gains 1 %. Where a scheme pays at any rate, the links "
        "inside a node bind."
    )
    yield ""


def _gbit(row: Mapping[str, Any], end: str) -> str:
    rate = row[f"rate_{end}_Bps"]
    return "1,600 or more" if rate >= FASTEST else f"{8e-9 * rate:.3g}"


def _published(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "**Published gains beside ours.** Gains of throughput; where a source says how many times as fast as one GPU "
        "its ranks are, so do we. Abstracts and issues were read, not papers."
    )
    yield ""
    yield "| job | scheme | published | predicted | predicted without | differs in |"
    yield "|---|---|---|--:|--:|---|"
    for case, row in zip(PUBLISHED, rows, strict=True):
        if case.scaled:
            found, plain = f"{row['times']:.2f} times one GPU", f"{row['plain_times']:.2f} times"
        else:
            found, plain = f"{row['plain_s'] / row['step_s'] - 1:+.1%}", f"{1e3 * row['plain_s']:.0f} ms"
        yield (
            f"| {case.what} | `{case.scheme}` | {case.published}, {case.source} | {found} | {plain} | {case.differs} |"
        )
    yield ""


def _losses(kept: Mapping[str, Any]) -> Iterator[str]:
    runs = kept["runs"]
    steps = kept["steps"]
    yield (
        "**Losses on real data.** `torchrun --standalone --nproc-per-node 2 -m studies.orders.codec_losses`: held-out "
        f"loss after training ResNet-8 on scikit-learn's digits ({steps['digits']} steps) and a recurrent character "
        f"model on the descriptions of its data sets ({steps['characters']} steps), mean of three seeds with "
        "their standard deviation; the same weights and batches at the start of every arm. Settings were not tuned for "
        "any scheme."
    )
    yield ""
    yield "| scheme | errors | digits | characters |"
    yield "|---|---|--:|--:|"
    for scheme, feedback in dict.fromkeys((run["scheme"], run["feedback"]) for run in runs):
        cells = []
        for task in steps:
            own = [
                r["held_out_loss"] for r in runs if (r["task"], r["scheme"], r["feedback"]) == (task, scheme, feedback)
            ]
            good = [loss for loss in own if loss is not None]
            cells.append(_spread(good) if len(good) == len(own) else "diverged")
        keeps = scheme not in ("none", "fp16")
        yield f"| `{scheme}` | {('fed back' if feedback else 'forgotten') if keeps else ''} | {' | '.join(cells)} |"
    yield ""
    yield _losses_said()


def _losses_said() -> str:
    return (
        "Without their errors `powersgd`, `onebit` and `topk` end 0.2 to 0.3 higher on text; with them, within 0.03 "
        "of plain gradients. On digits, at these few steps, seeds differ by as much as schemes do. `adaptive` kept to "
        "so many bits on text that its feedback changed next to nothing."
    )


def _spread(losses: Sequence[float]) -> str:
    if len(losses) > 1:
        return f"{fmean(losses):.3f} ± {stdev(losses):.3f}"
    return f"{losses[0]:.3f} (one seed)" if losses else "not run"


def _predicted() -> dict[str, Any]:
    tasks = [(machine, gpu, model) for machine, gpu in MACHINES for model in MODELS]
    with ProcessPoolExecutor(2) as pool:
        return {
            "published": list(pool.map(of_published, range(len(PUBLISHED)))),
            "break_even": [row for found in pool.map(of_machine, tasks) for row in found],
        }


def main(arguments: Sequence[str]) -> None:
    """Compute what is kept anew."""
    asked = parser(__doc__)
    asked.add_argument("table", metavar="TABLE", type=Path, nargs="?", help="what `ddpexec microbench` wrote")
    table = asked.parse_args(arguments).table
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept |= {"encoding": encoding(table)} if table else _predicted()
    write_whole(KEPT, json_text(kept).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
