"""What ranks that are not alike cost at 1,024 of them: a part of order-findings.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from ddpsim.workload.replayed import add_jitter

WORKLOADS = ("resnet50@v100-fp32-b32", "bert-base")
MACHINE, NODES = "p3dn.24xlarge", (1, 128)
"""Eight ranks, and 1,024."""
CASES: tuple[tuple[str, Mapping[str, Any], float], ...] = (
    ("all alike", {}, 0.0),
    ("`--jitter 2%`", {"jitter": 0.02}, 0.0),
    ("`--jitter 5%`", {"jitter": 0.05}, 0.0),
    ("`estimate --jitter 5%`", {}, 0.05),
    ("`--straggling lognormal:0.0235`", {"straggling": "lognormal:0.0235"}, 0.0),
    ("`--straggling lognormal:0.08`", {"straggling": "lognormal:0.08"}, 0.0),
    ("`--straggling exponential:0.05`", {"straggling": "exponential:0.05"}, 0.0),
    ("`--straggling pareto:10`", {"straggling": "pareto:10"}, 0.0),
    ("`--straggling some:0.01:1.5`", {"straggling": "some:0.01:1.5"}, 0.0),
)
"""What varies: as it is asked for, options, and the jitter of the estimate."""


def of_case(task: tuple[str, int, int]) -> dict[str, Any]:
    """Return a step with ranks that vary as one case says."""
    name, nodes, number = task
    _, options, in_estimate = CASES[number]
    workload = add_jitter(load_workload(name), in_estimate)
    machine = load_topology(MACHINE)
    made = predict(Job(workload, machine, nodes=nodes, options=Options(**options)), band=False)
    return {"workload": name, "nodes": nodes, "case": number, "iteration_s": made.iteration_s}


TASKS = [(name, nodes, number) for name in WORKLOADS for nodes in NODES for number in range(len(CASES))]


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the section."""
    yield (
        "Steps on `p3dn.24xlarge`, eight V100 a node, and by what share they are longer than where all ranks are alike "
        "but for the 2.35 % that V100s differ by (fitted to a public table). That GPUs of one model differ by 8 % in "
        "the mean and 22 % at most is measured on five clusters ([Sinha et al., SC 2022]"
        "(https://arxiv.org/abs/2208.11035)); 259 rented H100 differed by up to 34.5 % ([College of William & Mary, "
        "Jefferson Lab and Silicon Data](https://xeber.world/en/article/"
        "why-renting-gpus-for-ai-work-is-like-playing-the-silicon-lottery-21b0d7)). Every rank draws for itself; a "
        "collective waits for the last, so that a thousand ranks meet the tail of what eight seldom see. With jitter a "
        "step is the mean of twenty iterations: at eight ranks and 5 % two seeds differ by about 1 % of it. The 64 "
        "iterations of `estimate --jitter` hold 2.4 standard deviations; what more ranks are expected to meet beyond "
        "that is added, but not where local steps come between, nor where every rank is simulated as itself."
    )
    yield ""
    heads = " | ".join(f"{name.partition('@')[0]}, {8 * nodes:,} ranks" for name in WORKLOADS for nodes in NODES)
    yield f"| ranks differ by | {heads} |"
    yield "|---|" + "--:|" * (len(WORKLOADS) * len(NODES))
    known = {(row["workload"], row["nodes"], row["case"]): row["iteration_s"] for row in rows}
    for number, (what, _, _) in enumerate(CASES):
        cells = []
        for name in WORKLOADS:
            for nodes in NODES:
                step_s, alike_s = known[name, nodes, number], known[name, nodes, 0]
                cells.append(f"{1e3 * step_s:.1f} ms" if number == 0 else f"{step_s / alike_s - 1:+.1%}")
        yield f"| {what} | {' | '.join(cells)} |"
