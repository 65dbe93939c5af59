"""Kineto traces of a made-up training job, with and without DDP, from the same host and device costs."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field

MAIN, ENGINE, COMPUTE, COMMUNICATION = 1, 2, 7, 40
LAG = 5.0
TAIL = 4.0


def written(folder, document, name="rank0.json"):
    """Return the file of the folder that holds this trace."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(document))
    return path


@dataclass
class Job:
    """Microseconds of one step: `kernels` of backward, one a gradient; buckets of `bucket` gradients.

    `recorded`: with shapes and types. `others`: with allreduces of a layer, of unused parameters, and of the loop.
    `exchange`: microseconds of an all-to-all in forward and one in backward, for which the compute stream waits.
    `loop`: with an allreduce of the loop behind the optimizer.
    `rounds`: micro-batches a step, whose gradients add up; `no_sync`: all but the last do not reduce them.
    `rocm`: RCCL's kernels, which do not say what they do, and HIP's runtime.
    """

    kernels: list[float]
    ddp: bool = False
    forward_kernel: float = 50.0
    bucket: int = 2
    wire: float = 300.0
    elements: int = 10
    dtype: str = "Float"
    recorded: bool = False
    others: bool = False
    synchronise: bool = False
    exchange: float = 0.0
    rocm: bool = False
    loop: bool = False
    rounds: int = 1
    no_sync: bool = False
    events: list = field(default_factory=list)
    correlations: itertools.count = field(default_factory=lambda: itertools.count(1))
    free: dict = field(default_factory=dict)

    def host(self, name, start, duration, thread=MAIN, category="cpu_op", **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread, "args": args}
        )

    def device(self, name, launch, duration, thread=MAIN, stream=COMPUTE, after=0.0):
        number = next(self.correlations)
        runtime = ("hipExtLaunchKernel" if "nccl" in name else "hipLaunchKernel") if self.rocm else "cudaLaunchKernel"
        if self.rocm and "nccl" in name:
            name = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
        self.host(runtime, launch, 2, thread, "cuda_runtime", correlation=number)
        start = max(self.free.get(stream, 0.0), launch + LAG, after)
        self.free[stream] = start + duration
        self.events.append(
            {
                "ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": duration, "tid": stream,
                "args": {"stream": stream, "correlation": number},
            }
        )  # fmt: skip
        return self.free[stream]

    def step(self, number, start):
        now = start
        for part in range(self.rounds):
            now = self.backward(self.forward(now + 5), synced=part + 1 == self.rounds or not self.no_sync)
        now += self.allreduce(now, 1, MAIN) if self.others else 0
        self.host("Optimizer.step#SGD.step", now, 40, category="user_annotation")
        self.device("sgd", now + 20, 15)
        now += 40
        now += self.allreduce(now, 1, MAIN) if self.others else 0
        if self.loop:
            now += self.allreduce(now, 1, MAIN, lasting=200.0, after=max(self.free.values()))
            self.free[COMPUTE] = self.free[COMMUNICATION]
        if self.synchronise:
            done = max(self.free.values())
            self.host(
                f"{'hip' if self.rocm else 'cuda'}StreamSynchronize",
                now + 1,
                max(done - now, 1),
                category="cuda_runtime",
            )
            now = max(done, now + 2)
        self.host(f"ProfilerStep#{number}", start, now + 5 - start, category="user_annotation")
        return now + 5

    def forward(self, now):
        begin = now
        if self.ddp:
            self.host("aten::flatten_dense_tensors", now + 10, 20)
            self.host("c10d::broadcast_", now + 40, 30)
            self.device("ncclKernel_Broadcast", now + 50, 20, stream=COMMUNICATION)
            self.host("aten::copy_", now + 80, 10)
            self.device("copy", now + 85, 3)
            now += 90
            self.host("DistributedDataParallel.forward", begin, 90 + 100, category="user_annotation")
        self.host("aten::conv2d", now, 100)
        self.device("conv", now + 50, self.forward_kernel)
        return now + 100 + (self.all_to_all(now + 100, MAIN) if self.exchange else 0)

    def backward(self, now, synced=True):
        finished = 0.0
        for index, kernel in enumerate(self.kernels):
            self.host("autograd::engine::evaluate_function: ConvBackward0", now, 30 + TAIL, ENGINE)
            self.host("ConvBackward0", now, 30, ENGINE)
            self.device("wgrad", now + 10, kernel, ENGINE)
            if self.others:
                self.allreduce(now + 12, 64, ENGINE)
            now += 30 + TAIL
            if self.exchange and not index:
                self.host("autograd::engine::evaluate_function: ExchangeBackward", now, 20 + TAIL, ENGINE)
                now += self.all_to_all(now, ENGINE) + TAIL
            hook = self.hook(index, now + 12) if self.ddp and synced else (0.0, 0.0)
            self.host(
                "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", now, 12 + hook[0] + TAIL, ENGINE
            )
            recorded = {"Input Dims": [[self.elements]], "Input type": [f"c10::{self.dtype}"]} if self.recorded else {}
            self.host("torch::autograd::AccumulateGrad", now, 12, ENGINE, **recorded)
            finished = max(finished, hook[1])
            now += 12 + hook[0] + TAIL
        if self.ddp and synced:
            for _ in self.kernels:
                self.host("torch.distributed.ddp.reducer::copy_bucket_to_grad", now + 2, 6, ENGINE)
                self.device("copy", now + 4, 3, ENGINE, after=finished)
                now += 8
        return now

    def hook(self, index, now):
        self.host("torch::distributed::reducer::mul_out", now, 15, ENGINE)
        ready = self.device("mul", now + 5, 3, ENGINE)
        if (index + 1) % self.bucket and index + 1 < len(self.kernels):
            return 15, 0.0
        members = (index % self.bucket) + 1
        self.host("c10d::allreduce_", now + 15, 25, ENGINE)
        sums = {"In msg nelems": members * self.elements, "dtype": self.dtype}
        self.host("record_param_comms", now + 18, 20, ENGINE, **sums)
        done = self.device("ncclKernel_AllReduce", now + 30, self.wire, ENGINE, COMMUNICATION, after=ready)
        last = self.others and index + 1 == len(self.kernels)
        return 40 + (self.allreduce(now + 40, len(self.kernels), ENGINE, "Int") if last else 0), done

    def allreduce(self, now, elements, thread, dtype="Float", lasting=1, after=0.0):
        self.host("c10d::allreduce_", now, 10, thread)
        self.host("record_param_comms", now + 1, 8, thread, **{"In msg nelems": elements, "dtype": dtype})
        self.device("ncclKernel_AllReduce", now + 5, lasting, thread, COMMUNICATION, after)
        return 10

    def all_to_all(self, now, thread):
        """Layers wait for their experts: so does the compute stream."""
        self.host("c10d::alltoall_base_", now, 20, thread)
        sent = {"In msg nelems": 1000, "dtype": self.dtype, "Group size": 2, "Collective name": "all_to_allv"}
        self.host("record_param_comms", now + 1, 18, thread, **sent)
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        ready = self.free.get(COMPUTE, 0.0)
        self.free[COMPUTE] = self.device(name, now + 10, self.exchange, thread, COMMUNICATION, after=ready)
        return 20

    def document(self, steps=2):
        now = 1000.0
        for number in range(steps):
            now = self.step(number, now) + 50
        return {
            "traceEvents": self.events,
            "deviceProperties": [{"name": "AMD Instinct MI300X" if self.rocm else "NVIDIA A100-SXM4-40GB"}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        }
