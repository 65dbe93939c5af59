"""What is kept on the host: torch's `CPUOffloadPolicy`, by which a rank's shards and their optimizer leave the GPU.

Source: `torch/distributed/fsdp/_fully_shard/{_fsdp_param,_fsdp_collectives,_fsdp_param_group}.py`, torch 2.13: a shard
is copied to the GPU before it is gathered, from page-locked memory; the sum of a unit's gradients to the host behind
the reduction, on its stream, so that the next one begins after it; backward's end waits for the last of them on the
host, where the optimizer then steps.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST_UPDATE_S = {"sgd": 0.27e-9, "momentum": 0.67e-9, "adam": 2.4e-9, "adamw": 2.3e-9, "adamw-fused": 0.67e-9}
"""Seconds in which one host thread updates an element of fp32, by optimizer; torchrun gives a rank one thread.

Measured: least of two times seven steps on four tensors of 2 Mi elements each, nothing beside, torch 2.13, a core of an
AMD EPYC; the two differ by 8 to 22 %, those of `adam` and `adamw` by 40 and 64 %:
`python -m timeit -n 1 -r 7 -s "import torch; torch.set_num_threads(1); p = [torch.nn.Parameter(torch.ones(1 << 21))
for _ in range(4)]; [setattr(q, 'grad', torch.ones(1 << 21)) for q in p]; o = torch.optim.Adam(p); o.step()" "o.step()"`
"""


@dataclass(frozen=True, slots=True)
class HostOffload:
    """Shards of parameters, gradients and optimizer state are kept in the host's memory.

    Attributes:
        update_s: what the optimizer takes there for a rank's shard; None goes by `HOST_UPDATE_S`.
    """

    update_s: float | None = None

    def host_s(self, elements: float, optimizer: str | None) -> float:
        """Return what the optimizer takes on the host for so many elements; an unknown one takes what Adam does.

        >>> round(HostOffload().host_s(1e9, "momentum"), 3)
        0.67
        """
        if self.update_s is not None:
            return self.update_s
        kind = optimizer or "momentum"
        per_element_s = HOST_UPDATE_S.get(kind, HOST_UPDATE_S.get(kind.partition("-")[0], HOST_UPDATE_S["adam"]))
        return per_element_s * elements
