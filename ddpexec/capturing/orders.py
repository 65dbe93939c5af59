"""Records in which order, and when, gradients come on several ranks of one training, on one process.

The ranks take turns: each computes its own batch with the same weights, then the gradients' mean updates them. A rank
is timed by its thread's own processor time, which others' work on the machine does not stretch.
"""

from __future__ import annotations

import platform
import time

import numpy as np
import torch
from torch import Tensor

from ddpexec.capturing.models.changing import SAMPLES, Case, DynamicModel, make_changing_model
from ddpexec.ddp.parameters import collect
from ddpsim.workload.order_trace import Context, OrderTrace
from ddpsim.workload.profile import Phase, Workload

WARM_UP = 5
"""Steps before those that are recorded: a first backward allocates what later ones find."""


def record_orders(name: str, *, ranks: int = 4, steps: int = 300, seed: int = 0) -> OrderTrace:
    """Return the order trace of the model called `name`, trained for `steps` steps by `ranks` ranks.

    Raises:
        UnknownNameError: no such model.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = make_changing_model(name, seed)
        recorder = _Recorder(model, ranks, seed)
        for step in range(WARM_UP + steps):
            recorder.step(kept=step >= WARM_UP)
    finally:
        torch.set_num_threads(threads)
    provenance = {
        "command": f"python -m ddpexec record-orders --model {name} --ranks {ranks} --steps {steps} --seed {seed}",
        "torch": torch.__version__,
        "machine": platform.machine(),
        "clock": "processor time of the thread; ranks in turn on one process, one thread each",
    }
    known = model.KNOWN
    contexts = tuple(tuple(c if known else None for c in row) for row in recorder.contexts)
    workloads = tuple(recorder.workload(name, rank) for rank in range(ranks))
    return OrderTrace(workloads, contexts, provenance)


class _Recorder:
    def __init__(self, model: DynamicModel, ranks: int, seed: int) -> None:
        self.model, self.ranks = model, ranks
        self.tensors = list(model.parameters())
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        self.batches = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(ranks)]
        self.chances = [torch.Generator().manual_seed(7000 + 1000 * seed + rank) for rank in range(ranks)]
        self.contexts: list[list[Context]] = [[] for _ in range(ranks)]
        self.times: list[list[tuple[float, float, float]]] = [[] for _ in range(ranks)]
        self.hooks: list[list[list[float]]] = [[] for _ in range(ranks)]
        self._row: list[float] = []
        self._began = 0.0
        for index, tensor in enumerate(self.tensors):
            tensor.register_post_accumulate_grad_hook(self._make_note_hook(index))  # type: ignore[no-untyped-call]

    def step(self, *, kept: bool) -> None:
        """Train once on every rank in turn."""
        sums: list[Tensor | None] = [None] * len(self.tensors)
        taken = [self._rank(rank, sums) for rank in range(self.ranks)]
        for tensor, total in zip(self.tensors, sums, strict=True):
            tensor.grad = None if total is None else total / self.ranks
        begin = time.thread_time()
        self.optimizer.step()
        self.optimizer.zero_grad()
        optimizer_s = time.thread_time() - begin
        if not kept:
            return
        for rank, (context, forward_s, backward_s, row) in enumerate(taken):
            self.contexts[rank].append(context)
            self.times[rank].append((forward_s, backward_s, optimizer_s))
            self.hooks[rank].append(row)

    def workload(self, name: str, rank: int) -> Workload:
        """Return the workload recorded of a rank."""
        forward, backward, optimizer = (np.array(times) for times in zip(*self.times[rank], strict=True))
        hooks = np.array(self.hooks[rank])
        return Workload(
            name=name, device="cpu", precision="fp32", batch_size=SAMPLES, threads=1, estimated=False,
            parameters=tuple(collect(self.model).policy), buffers=(),
            forward=Phase(forward, forward), backward=Phase(backward, backward), optimizer=Phase(optimizer, optimizer),
            gradient_hook_s=hooks, gradient_ready_s=hooks.copy(),
        )  # fmt: skip

    def _rank(self, rank: int, sums: list[Tensor | None]) -> tuple[int, float, float, list[float]]:
        """Compute one rank's gradients and add them to `sums`; return its context and times."""
        case = Case.draw(self.batches[rank], self.model.CONTEXTS)
        self.model.chance = self.chances[rank]
        begin = time.thread_time()
        loss = self.model(case)
        self._row, self._began = [float("nan")] * len(self.tensors), time.thread_time()
        loss.backward()
        end = time.thread_time()
        for index, tensor in enumerate(self.tensors):
            if tensor.grad is not None:
                before = sums[index]
                sums[index] = tensor.grad if before is None else before + tensor.grad
                tensor.grad = None
        return case.context, self._began - begin, end - self._began, self._row

    def _make_note_hook(self, index: int) -> object:
        def note(_: Tensor) -> None:
            self._row[index] = time.thread_time() - self._began

        return note
