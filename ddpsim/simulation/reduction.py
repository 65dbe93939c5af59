"""How a rank reduces one bucket: one allreduce, or the messages of a compression scheme with its work between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import simpy

from ddpsim.bucketing import Bucket, Parameter
from ddpsim.compression import Scheme
from ddpsim.operations import Operation
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.processor import Process
from ddpsim.simulation.rendezvous import Launch, SimulatedCommunicator
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of


@dataclass(frozen=True, slots=True)
class Sends:
    """What one bucket sends, and what a rank computes for it.

    Attributes:
        encode_s: before the first message: on a CPU the host's time, else the device's.
        messages: (seconds since the message before has ended, bytes); the first has none.
        decode_s: after the last.
        host_s: of launching all that, beside the messages themselves; nothing on a CPU.
    """

    encode_s: float
    messages: tuple[tuple[float, int], ...]
    decode_s: float
    host_s: float


class CodecCosts:
    """A scheme at work on one kind of rank, priced with what was measured of it, else as DDP's own copies are.

    Then a byte read or written takes half of what a copied byte does, a kernel the least time of one, and of the host
    what a hook does; matrix products run at the share of the GPU's peak that fp32 training reaches.

    Args:
        scheme: of all buckets.
        workload: whose parameters and device.
        world_size: messages that are gathered grow with it.
        costs: of DDP.
    """

    def __init__(self, scheme: Scheme, workload: Workload, world_size: int, costs: Costs) -> None:
        self._scheme, self._parameters, self._world_size = scheme, workload.parameters, world_size
        shared = workload.one_clock
        gpu = gpu_of(workload.gpu, workload.provenance)
        flops = gpu.achieved_flops("gemm", "fp32") if gpu and "fp32" in gpu.peak_flops else None
        self._processor = replace(costs.codec(scheme.name, one_clock=shared), flops=flops)
        self._kernel_host_s = 0.0 if shared else costs.hook_s
        self._known: dict[tuple[int, ...], Sends] = {}

    def sends(self, bucket: Bucket) -> Sends:
        """Return what `bucket` sends."""
        if bucket.parameters not in self._known:
            self._known[bucket.parameters] = self._worked_out([self._parameters[i] for i in bucket.parameters])
        return self._known[bucket.parameters]

    def _worked_out(self, parameters: list[Parameter]) -> Sends:
        works, time_s = self._scheme.works(parameters, self._world_size), self._processor.time_s
        sizes = [round(m.allreduce_bytes(self._world_size)) for m in self._scheme.messages(parameters)]
        pauses = [0.0, *map(time_s, works[1:-1])]
        kernels = sum(work.kernels for work in works)
        messages = tuple(zip(pauses, sizes, strict=True))
        return Sends(time_s(works[0]), messages, time_s(works[-1]), kernels * self._kernel_host_s)


class Reduction:
    """Follows one bucket through its messages, each launched now and begun after the one before.

    Args:
        communicator: of the rank.
        sends: what is sent.
        after: event on this rank's device before which the first message cannot begin.
        operation: what is done with each message.
        lane: the communicator's; None where process groups take turns.
        launched_s: when the host hands the messages over; None is now.
        delay_s: how long the first message waits after that, or after `after`.

    Attributes:
        done: succeeds when the gradients are there.
    """

    __slots__ = ("_decode_s", "_env", "_launches", "done")

    def __init__(
        self,
        communicator: SimulatedCommunicator,
        sends: Sends,
        after: simpy.Event | None = None,
        operation: Operation = Operation.ALLREDUCE,
        lane: int | None = None,
        launched_s: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self._env, self._decode_s = communicator.env, sends.decode_s
        self._launches: list[Launch] = []
        if delay_s > 0:
            after = self._env.timeout(delay_s) if after is None else self._later(after, delay_s)
        for pause_s, size_bytes in sends.messages:
            if self._launches:
                after = self._later(self._launches[-1].done, pause_s)
            self._launches.append(communicator.launch(size_bytes, after, operation, lane, launched_s))
        self.done = self._later(self._launches[-1].done, sends.decode_s)

    @property
    def launched_s(self) -> float:
        """When the host handed the first message over."""
        return self._launches[0].launched_s

    @property
    def started_s(self) -> float | None:
        """When the first message began on this rank."""
        return self._launches[0].started_s

    @property
    def wire_s(self) -> float | None:
        """When the last rank had arrived for the first message."""
        return self._launches[0].wire_s

    @property
    def finished_s(self) -> float | None:
        """When the gradients were there."""
        last = self._launches[-1].finished_s
        return None if last is None else last + self._decode_s

    def _later(self, event: simpy.Event, seconds: float) -> simpy.Event:
        return self._env.process(self._wait(event, seconds)) if seconds > 0 else event

    def _wait(self, event: simpy.Event, seconds: float) -> Process:
        yield event
        yield self._env.timeout(seconds)
