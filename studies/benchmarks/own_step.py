"""How long, and in how much memory, a step of one billion parameters is estimated: the whole process, as a user waits.

Run it as `python -m studies.benchmarks.own_step`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from studies.command import parser

SECONDS, MEMORY_BYTES = 20.0, 4e9
"""What it may take at most."""

WIDTH, LAYERS, HEADS, VOCABULARY, BATCH, TOKENS = 1792, 24, 16, 50_257, 8, 1024


def train() -> tuple[object, Callable[[], object]]:
    """Return a transformer of 1.0 billion parameters with a tied output, and its step with AdamW."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
                for _ in range(LAYERS)
            )
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            logits: torch.Tensor = self.head(x)
            return logits

    net = Transformer()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))

    def step() -> None:
        logits = net(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def main() -> None:
    """Print seconds and peak memory beside their bounds; exit with 1 where one is exceeded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.json.gz"
        arguments = ["-m", "ddpexec", "estimate", "--step", f"{__spec__.name}:train", "--gpu", "A100"]
        begin = time.perf_counter()
        process = os.posix_spawn(
            sys.executable, [sys.executable, *arguments, "--precision", "amp", "-o", str(path)], os.environ
        )
        _, status, used = os.wait4(process, 0)
        seconds, computing = time.perf_counter() - begin, used.ru_utime + used.ru_stime
        memory_bytes = used.ru_maxrss * 1024
        if status:
            sys.exit(1)
        from ddpsim.workload.files import load_workload

        workload = load_workload(path)
    numel = workload.gradient_bytes / 4
    print(f"{workload.name}: {numel / 1e9:.3f} billion parameters, {workload.provenance['counted']}")
    took = f"{seconds:.1f} s (at most {SECONDS:.0f}; {computing:.1f} s of them on a processor)"
    print(f"{took}, {memory_bytes / 1e9:.2f} GB (at most {MEMORY_BYTES / 1e9:.0f})")
    sys.exit(seconds > SECONDS or memory_bytes > MEMORY_BYTES)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
