"""Is the late rank named right? A hundred synthetic stragglers and a hundred healthy runs on the lab, judged.

    python -m studies.stragglers.stragglers run OUT [--seed S] [--share F]
    python -m studies.stragglers.stragglers judge OUT [--table FILE]

`run` needs Linux and root. Timed layers under our DDP on two to four ranks; one rank takes longer in forward, in
backward or before forward (input), or one rank's link is slower than the others'. Each case leaves a folder of traces
and `case.json`, what was done; `judge` explains each folder and holds the answer against it. What an injection costs is
drawn as a share of the computing time; links are slowed by a factor.

Thresholds are in `ddpsim/explaining/late.py` and `links.py`; `SEED` is that of the judged runs, and was not run before
they were committed. Pilot runs, from which they were chosen, had other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.workload import Phase, Workload

SEED = 20261123
EACH = 25
"""Cases of each of the four kinds; four times as many healthy runs."""
KINDS = ("forward", "backward", "input", "link")
COSTS = 0.03, 0.15
"""Of the computing time, what an injection is drawn from: 2 % of a step that is at most half as long again."""
FACTORS = 1.5, 4.0
"""By how much a slowed link is slower."""
ITERATIONS, RECORDED = 15, 5
LAYERS, LAYER_BYTES = 24, 1 << 18
RATE_MBIT = 1000
JITTER = 0.01
"""Standard deviation of every recorded phase: devices of one model are not that even (Sinha et al., SC 2022)."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is done in one run.

    Attributes:
        kind: of `KINDS`, or `healthy`.
        rank: the slow one; -1 in a healthy run.
        cost: share of the computing time that it is slower by; of a link the factor.
        forward_s, backward_s: of the model.
    """

    number: int
    kind: str
    world_size: int
    rank: int
    cost: float
    forward_s: float
    backward_s: float


def cases(seed: int, share: float = 1.0) -> list[Case]:
    """Return the cases of a seed, or of a share of them."""
    draws = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(max(1, round(EACH * share)))]
    kinds += ["healthy"] * max(1, round(4 * EACH * share))
    found = []
    for number, kind in enumerate(kinds):
        world_size = draws.choice((2, 3, 4))
        rank = -1 if kind == "healthy" else draws.randrange(world_size)
        cost = draws.uniform(*(FACTORS if kind == "link" else COSTS))
        found.append(Case(number, kind, world_size, rank, cost, draws.uniform(0.015, 0.04), draws.uniform(0.04, 0.08)))
    return found


def workload_of(case: Case, rank: int) -> Workload:
    """Return what a rank of a case replays: small layers, even in size and time, with jitter between iterations."""
    draws = np.random.default_rng([case.number, 7])
    factors = draws.normal(1.0, JITTER, (3, RECORDED))
    extra_s = case.cost * (case.forward_s + case.backward_s) if rank == case.rank else 0.0
    forward_s = case.forward_s * factors[0] + (extra_s if case.kind == "forward" else 0.0)
    backward_s = case.backward_s * factors[1] + (extra_s if case.kind == "backward" else 0.0)
    places = np.arange(LAYERS)
    ready_s = backward_s[:, None] * (LAYERS - places[None, :]) / LAYERS
    return Workload(
        name=f"case{case.number}",
        device="cpu",
        precision="fp32",
        batch_size=1,
        threads=1,
        estimated=True,
        parameters=tuple(Parameter(f"layer{place}.weight", (LAYER_BYTES // 4,)) for place in places),
        buffers=(),
        forward=Phase(forward_s, forward_s),
        backward=Phase(backward_s, backward_s),
        optimizer=Phase(0.002 * factors[2], 0.002 * factors[2]),
        gradient_hook_s=ready_s,
        gradient_ready_s=ready_s,
    )


def network(world_size: int, slow: Case | None = None) -> str:
    """Return the YAML of a lab network, with the link of a case slowed."""
    lines = [
        f"name: lab{world_size}",
        'sources: ["set by `python -m ddpexec netlab`"]',
        "confidence: set, not measured",
        f"nodes: {world_size}",
        "node:",
        "  processes: {count: 1, rate: 100GB/s, total: 100GB/s}",
        f"  nics: [{{rate: {RATE_MBIT}mbit, kind: ethernet}}]",
        "fabric: {kind: flat}",
    ]
    if slow is not None:
        rate = f"{RATE_MBIT / slow.cost:.0f}mbit"
        lines += ["degraded:", f"  - {{node: {slow.rank}, link: nic0-network, bandwidth: {rate}}}"]
    return "\n".join([*lines, ""])


def run(out: Path, seed: int, share: float) -> None:
    """Run every case, one launch a network, and microbenchmark the healthy networks."""
    out.mkdir(parents=True, exist_ok=True)
    begun, all_cases = time.monotonic(), cases(seed, share)
    for world_size in (2, 3, 4):
        healthy = out / f"lab{world_size}.yaml"
        healthy.write_text(network(world_size))
        table = out / f"lab{world_size}.json"
        if not table.exists():
            sizes = ["-b", "256K", "-e", "8M", "-f", "2"]
            _lab(healthy, ["-m", "ddpexec", "microbench", *sizes, "-o", str(table)])
        _work(
            out, healthy, [c for c in all_cases if c.world_size == world_size and c.kind != "link"], f"net{world_size}"
        )
    for case in all_cases:
        if case.kind == "link":
            slowed = out / f"link{case.number}.yaml"
            slowed.write_text(network(case.world_size, case))
            _work(out, slowed, [case], f"link{case.number}")
    print(f"{len(all_cases)} cases in {time.monotonic() - begun:.0f} s")


def _work(out: Path, topology: Path, todo: Sequence[Case], name: str) -> None:
    left = [case for case in todo if not (out / f"case{case.number:03}" / "case.json").exists()]
    if left:
        listed = out / f"{name}.todo.json"
        listed.write_text(json.dumps([asdict(case) for case in left]))
        _lab(topology, ["-m", "studies.stragglers.stragglers", "work", str(out), str(listed)])


def _lab(topology: Path, command: Sequence[str]) -> None:
    lab = [sys.executable, "-m", "ddpexec", "netlab", "--topology", str(topology), "--"]
    done = subprocess.run([*lab, sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")


def work(out: Path, listed: Path) -> None:
    """Carry out the listed cases on this rank."""
    import torch

    from ddpexec.groups.launched import join_launched
    from ddpexec.running.run import Run
    from ddpexec.running.settings import RunSettings
    from ddpsim.trace.json import write_rank, write_run

    torch.set_num_threads(1)

    class Loading(Run):
        """It loads a batch before each step, for as long as it is told."""

        loading_s = 0.0

        def _step(self, index: int, model: Any, batch: Any, *, local: bool = False) -> None:
            if self.loading_s:
                time.sleep(self.loading_s)
            super()._step(index, model, batch, local=local)

    with join_launched("run", None, None, 300.0) as rank:
        for case in (Case(**each) for each in json.loads(listed.read_text())):
            number = int(os.environ["RANK"])
            settings = RunSettings(iterations=ITERATIONS, seed=case.number)
            running = Loading(settings, rank.device, workload=workload_of(case, number))
            if case.kind == "input" and number == case.rank:
                running.loading_s = case.cost * (case.forward_s + case.backward_s)
            running.train()
            folder = out / f"case{case.number:03}"
            trace = running.trace()
            write_rank(trace, number, folder)
            if number == 0:
                write_run(trace, folder)
                (folder / "case.json").write_text(json.dumps(asdict(case)))


def judged(out: Path) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield each case with what `explain` says of its traces."""
    from ddpsim.explaining.explain import explain
    from ddpsim.explaining.run_facts import RunFacts

    for file in sorted(out.glob("case*/case.json")):
        case = Case(**json.loads(file.read_text()))
        given = RunFacts(
            topology=str(out / f"lab{case.world_size}.yaml"), nccl_tests=str(out / f"lab{case.world_size}.json")
        )
        yield case, explain(file.parent, given).document()


def right(case: Case, said: dict[str, Any]) -> bool:
    """Whether the answer names what was done, and nothing else."""
    late, link = said["late_rank"], said["slow_link"]
    if case.kind == "healthy":
        return late is None and link is None
    if case.kind == "link":
        return late is None and link is not None
    return link is None and late is not None and (late["rank"], late["cause"]) == (case.rank, case.kind)


def judge(out: Path, table: Path | None) -> None:
    """Print how many were named right, and each that was not."""
    rows, counts, places = [], dict[str, list[bool]](), list[bool]()
    for case, said in judged(out):
        good = right(case, said)
        counts.setdefault(case.kind, []).append(good)
        late, link = said["late_rank"], said["slow_link"]
        step_s = said["traced"]["step_s"]
        named = "" if late is None else f"rank {late['rank']} {late['cause']} {100 * late['seconds'] / step_s:.1f} %"
        if link is not None:
            named += f" link x{link['factor'] or 0:.2f} {100 * link['seconds'] / step_s:.1f} % {link['ranks']}"
        extra_s = 0.0 if case.kind in ("link", "healthy") else case.cost * (case.forward_s + case.backward_s)
        rows.append({**asdict(case), "right": good, "said": named, "step_s": step_s, "injected": extra_s / step_s})
        if case.kind == "link" and link is not None and link["ranks"]:
            places.append(case.rank in link["ranks"])
        if not good:
            print(f"case {case.number}: {case.kind} {case.rank} of {case.world_size} x{case.cost:.2f}: said {named!r}")
    for kind, found in counts.items():
        print(f"{kind:9} {sum(found):3} of {len(found):3} right")
    print(f"of {len(places)} slow links that were placed {sum(places)} are at the slow one's rank")
    if table is not None:
        table.write_text("[\n" + ",\n".join(json.dumps(_rounded(row)) for row in rows) + "\n]\n")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "work", "judge"))
    parser.add_argument("out", type=Path)
    parser.add_argument("listed", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.what == "run":
        run(given.out, given.seed, given.share)
    elif given.what == "work":
        work(given.out, given.listed)
    else:
        judge(given.out, given.table)


if __name__ == "__main__":
    main()
