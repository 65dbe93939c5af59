"""Train on real images by the schemes that give up equal weights, beside DDP, and keep where the loss ends.

python -m studies.convergence.scheme_losses          # trains what studies/convergence/scheme_losses.json lacks; minutes
python -m studies.convergence.scheme_losses --page   # writes the page of what is kept

The images are scikit-learn's digits, as in `studies.convergence.convergence`. Four ranks train over gloo; servers come
beside them. What a scheme may cost was stated before any was trained: `WITHIN`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ddpsim.common.files import write_whole
from studies.command import parser

FILE = Path(__file__).with_name("scheme_losses.json")
PAGE = Path(__file__).with_name("scheme-losses.md")
COMMAND = "python -m studies.convergence.scheme_losses"

WORKERS, BATCH, STEPS, RATE, MOMENTUM = 4, 8, 600, 0.05, 0.9
SEEDS = (0, 1, 2)
WITHIN = 0.02
"""Nats of held-out loss, mean of the seeds, by which a scheme may end above DDP; stated before the first training."""


@dataclass(frozen=True)
class Case:
    """A case is a scheme, and what it is trained with.

    Attributes:
        servers: ranks beside the workers.
        rate: learning rate; a server that updates by one rank's gradient at a time takes a step a rank.
        momentum: of the optimizer; gradients that are stale have it already (Mitliagkas et al., 2016).
    """

    scheme: str
    servers: int = 0
    rate: float = RATE
    momentum: float = MOMENTUM


CASES = (
    Case("ddp"),
    Case("averaging:8"),
    Case("slowmo:8"),
    Case("slowmo:8,rate=0.5"),
    Case("local-sgd:8,ranks=2"),
    Case("parameter-server:async", 1, RATE / WORKERS / (1 - MOMENTUM), 0.0),
    Case("gradientflow:density=0.25,chunk=256"),
)


def train(rank: int, case: Case, seed: int) -> dict[str, float] | None:
    """Train once; return what the first rank makes of the images held out, None on the others."""
    import torch
    from torch import nn
    from torch.nn import functional

    from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
    from studies.convergence.convergence import batches, digits

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    made = ScheduledDataParallel(
        model, case.scheme, lambda p: torch.optim.SGD(p, lr=case.rate, momentum=case.momentum), broadcast_buffers=False
    )
    if made.serves:
        made.serve()
        return None
    images, held_out = digits()
    stream, last = batches(images, BATCH, rank, WORKERS, seed), []
    for number in range(STEPS):
        batch = next(stream)
        loss = functional.cross_entropy(made(batch.pixels), batch.labels)
        loss.backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
        if number >= 0.9 * STEPS:
            last.append(float(loss.detach()))
    made.end()
    if rank:
        return None
    with torch.no_grad():
        scores = made.module(held_out.pixels)
    return {
        "training_loss": round(fmean(last), 5),
        "held_out_loss": round(float(functional.cross_entropy(scores, held_out.labels)), 5),
        "held_out_accuracy": round(float((scores.argmax(1) == held_out.labels).float().mean()), 4),
    }


def trained() -> dict[str, Any]:
    """Train every case with every seed that is not kept yet, the seeds beside each other; return the document."""
    import torch

    kept = json.loads(FILE.read_text())["runs"] if FILE.is_file() else []
    done = {(each["scheme"], each["seed"]) for each in kept}
    asked = [(case, seed) for case in CASES for seed in SEEDS if (case.scheme, seed) not in done]
    with ProcessPoolExecutor(len(SEEDS)) as beside:
        runs = [*kept, *beside.map(run, *zip(*asked, strict=True))] if asked else kept
    return {"torch": torch.__version__, "steps": STEPS, "runs": runs}


def run(case: Case, seed: int) -> dict[str, Any]:
    """Train a case with a seed; return what is kept of it."""
    from tests.ddpexec.groups import ranks

    [found, *_] = ranks.run_own(WORKERS + case.servers, train, case, seed, timeout_s=1200, group_timeout_s=300)
    kept = {"scheme": case.scheme, "seed": seed, **found}
    print(kept, file=sys.stderr, flush=True)
    return kept


@dataclass(frozen=True)
class Row:
    """A row is what the trainings of a scheme come to, means over the seeds."""

    scheme: str
    training: float
    held_out: float
    error: float
    accuracy: float

    def holds(self, ddp: Row) -> bool:
        """Whether it ends within `WITHIN` of DDP."""
        return self.held_out - ddp.held_out <= WITHIN


def rows(document: dict[str, Any]) -> list[Row]:
    """Return the rows of a document, DDP's first."""
    found = []
    for case in CASES:
        mine = [run for run in document["runs"] if run["scheme"] == case.scheme]
        held_out = [run["held_out_loss"] for run in mine]
        training, accuracy = (fmean(run[key] for run in mine) for key in ("training_loss", "held_out_accuracy"))
        found.append(Row(case.scheme, training, fmean(held_out), stdev(held_out) / len(held_out) ** 0.5, accuracy))
    return found


_HEAD = f"""# Loss of the schemes that give up equal weights

Written by `make convergence`. Really trained by ddpexec over gloo, on scikit-learn's digits (1,437 images, 360 held
out): a network of two convolutions and two linear layers, {WORKERS} ranks, batches of {BATCH} a rank, {STEPS} steps,
SGD at {RATE:g} with momentum {MOMENTUM:g}, {len(SEEDS)} seeds. A scheme holds where its mean held-out loss is at most
{WITHIN:g} above DDP's, which was stated before the first training. `{COMMAND}` trains again.

| scheme | training loss | held-out loss | standard error | beside DDP's | accuracy | verdict |
|---|--:|--:|--:|--:|--:|---|
"""

_BEHIND = """
SlowMo's outer momentum of 0.5 doubles the step from average to average, beside momentum 0.9 at DDP's learning rate;
`rate=0.5` takes that back. That row was added once the first had failed.
`parameter-server:async` has one server, which updates by one rank's gradient at a time, without momentum, which
staleness brings along, and at the learning rate that comes to DDP's: rate / (1 - momentum) / ranks. `local-sgd` sums
gradients in pairs of ranks in each step. `gradientflow` sends a quarter of the chunks of 256 gradients. The last step
is one after which averages are taken.

A first training of 300 steps, which is no multiple of 8, was broken off and is not kept. A task this small shows that
a scheme trains, and no more: what averages and staleness cost on a task that is hard to learn is for whoever trains it.
"""


def page(document: dict[str, Any]) -> str:
    """Return the page."""
    ddp, *_ = found = rows(document)
    lines = [
        f"| `{row.scheme}` | {row.training:.4f} | {row.held_out:.4f} | {row.error:.4f} | "
        f"{row.held_out - ddp.held_out:+.4f} | {row.accuracy:.1%} | {'holds' if row.holds(ddp) else 'fails'} |"
        for row in found
    ]
    beyond = [row for row in found[1:] if abs(row.held_out - ddp.held_out) > 2 * hypot(row.error, ddp.error)]
    named = " and ".join(f"`{row.scheme}`" for row in beyond) or "none"
    apart = f"\nBeyond two standard errors of the seeds, both schemes' together, from DDP: {named}.\n"
    return _HEAD + "\n".join(lines) + "\n" + apart + _BEHIND


def text() -> str:
    """Return the page of what is kept."""
    return page(json.loads(FILE.read_text()))


if __name__ == "__main__":
    parser(__doc__).parse_args()
    write_whole(FILE, (json.dumps(trained(), indent=1) + "\n").encode())
