"""Train on real images and real text with every compression scheme, its errors fed back and forgotten.

torchrun --standalone --nproc-per-node 2 -m studies.orders.codec_losses    # writes codec_losses.json beside this file

The images are scikit-learn's digits, held out and batched as in `studies.convergence.convergence`; the text is the
descriptions of its data sets, which its wheel ships (41 kB of English), of which the last tenth is held out. A model
that reads characters, of one recurrent layer, guesses the next one. Every arm of a seed starts with the same weights
and sees the same batches, so that what differs is the codec.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from ddpexec.ddp.compression import hook_for
from ddpexec.groups.launched import join_launched
from ddpsim.common.files import json_text, write_whole
from studies.convergence.convergence import batches, digits, resnet8

KEPT = Path(__file__).with_name("codec_losses.json")
ARMS = (
    ("none", True), ("fp16", True),
    *((name, fed) for name in ("powersgd:2", "onebit", "topk:0.01", "adaptive") for fed in (True, False)),
)  # fmt: skip
"""Scheme, and whether its errors are fed back; half precision keeps none, and torch refuses bf16 over gloo."""
SEEDS = (0, 1, 2)
STEPS = {"digits": 200, "characters": 300}
HELD_OUT = 0.1
LENGTH, SAMPLES = 40, 8
"""Characters of a sample; samples of a rank and step."""
HIDDEN = 128


@dataclass(frozen=True)
class Task:
    """A task is a model, its batches by rank, and its loss on what is held out.

    Attributes:
        loss: of a model on a batch.
        held_out: loss of a model on what it has not seen.
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int, int], Iterator[tuple[Tensor, Tensor]]]
    held_out: tuple[Tensor, Tensor]
    rate: float

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross entropy, over characters where each is guessed."""
        inputs, wanted = batch
        scores = model(inputs)
        return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1))


class Characters(nn.Module):
    """Guesses each next character of a text from those before it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(count, 32)
        self.layer = nn.GRU(32, HIDDEN, batch_first=True)
        self.guess = nn.Linear(HIDDEN, count)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores by sample, place and character."""
        scores: Tensor = self.guess(self.layer(self.embed(text))[0])
        return scores


def descriptions() -> tuple[Tensor, int]:
    """Return the text as numbers of its characters, and how many different ones it has."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("scikit-learn is not installed: pip install -e .[exec,dev]")
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "descr"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.rst")))
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([known[character] for character in text]), len(known)


def images_task() -> Task:
    """Return ResNet-8 on digits."""
    images, held_out = digits()

    def drawn(rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        return ((each.pixels, each.labels) for each in batches(images, 16, rank, ranks, seed))

    return Task(resnet8, drawn, (held_out.pixels, held_out.labels), rate=0.05)


def characters_task() -> Task:
    """Return the character model on descriptions."""
    text, count = descriptions()
    split = round(len(text) * (1 - HELD_OUT))
    seen, unseen = text[:split], text[split:]

    def drawn(rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            begins = torch.randint(len(seen) - LENGTH, (SAMPLES,), generator=generator)
            rows = seen[begins[:, None] + torch.arange(LENGTH + 1)]
            yield rows[:, :-1], rows[:, 1:]

    whole = unseen[: len(unseen) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return Task(lambda: Characters(count), drawn, (whole[:, :-1], whole[:, 1:]), rate=0.5)


TASKS = {"digits": images_task, "characters": characters_task}


def train(name: str, task: Task, scheme: str, feedback: bool, seed: int) -> dict[str, object]:
    """Train once; return the held-out loss, rank 0's where buffers differ."""
    torch.manual_seed(seed)
    model = nn.parallel.DistributedDataParallel(task.model())
    model.register_comm_hook(*hook_for(scheme, feedback=feedback))
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9 if name == "digits" else 0.0)
    stream = task.batches(dist.get_rank(), dist.get_world_size(), seed)
    for _ in range(STEPS[name]):
        loss = task.loss(model, next(stream))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        held_out = float(task.loss(model.module, task.held_out))
    return {
        "task": name,
        "scheme": scheme,
        "feedback": feedback,
        "seed": seed,
        "held_out_loss": round(held_out, 4) if held_out == held_out else None,
    }


def main() -> None:
    """Train every arm and seed that is not kept yet, and keep each when it is done."""
    torch.set_num_threads(1)
    kept: list[dict[str, object]] = json.loads(KEPT.read_text())["runs"] if KEPT.exists() else []
    done = {(run["task"], run["scheme"], run["feedback"], run["seed"]) for run in kept}
    with join_launched("codec-losses", "gloo", "cpu"):
        for seed in SEEDS:
            for name, make in TASKS.items():
                task = make()
                for scheme, feedback in ARMS:
                    if (name, scheme, feedback, seed) in done:
                        continue
                    kept.append(train(name, task, scheme, feedback, seed))
                    if dist.get_rank() == 0:
                        print(json.dumps(kept[-1]), file=sys.stderr, flush=True)
                        ranks = dist.get_world_size()
                        document = {"ranks": ranks, "steps": STEPS, "torch": torch.__version__, "runs": kept}
                        write_whole(KEPT, json_text(document).encode())


if __name__ == "__main__":
    main()
