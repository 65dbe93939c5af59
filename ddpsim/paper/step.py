"""One step of the paper's as a point: a model on its cluster, with the options of PyTorch 1.5."""

from __future__ import annotations

from dataclasses import dataclass

CAP_MB = 25.0
"""`bucket_cap_mb` of PyTorch 1.5 where none is given."""
FIRST_MB = 1.0
"""Cap of the first bucket, whatever `bucket_cap_mb` is."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step is one prediction.

    Attributes:
        workload, topology: names.
        nodes: how many; `gpus` of each, None is all.
        backend: `nccl` or `gloo`.
        cap_mb: `bucket_cap_mb`; 0 is a bucket a gradient.
        overlap: whether buckets leave while backward goes on.
        groups: round-robin process groups.
        sync_every: iterations between two synchronisations.
    """

    workload: str
    topology: str
    backend: str
    nodes: int = 1
    gpus: int | None = None
    cap_mb: float = CAP_MB
    overlap: bool = True
    groups: int = 1
    sync_every: int = 1

    def __str__(self) -> str:
        return f"{self.workload} by {self.backend} on {self.nodes} x {self.topology}"

    def answer(self) -> dict[str, float]:
        """Return the iteration and its parts, in seconds."""
        from ddpsim.bucketing import BucketCaps
        from ddpsim.prediction.predict import predict
        from ddpsim.simulation import Options
        from ddpsim.topology.spec import load_topology
        from ddpsim.workload.files import load_workload

        options = Options(
            caps=BucketCaps(bucket_cap_mb_list=(FIRST_MB, self.cap_mb)),
            assignment="unused",
            backend="nccl" if self.backend == "nccl" else "gloo",
            overlap="on" if self.overlap else "off",
            optimizer="sgd",
            process_groups=self.groups,
        )
        made = predict(
            load_workload(self.workload),
            load_topology(self.topology),
            nodes=self.nodes,
            gpus_per_node=self.gpus,
            options=options,
            band=False,
            brief=True,
        )
        parts = made.summary
        return {
            "iteration_s": made.iteration_s,
            "forward_s": parts.forward_s,
            "backward_compute_s": parts.backward_compute_s,
            "exposed_comm_s": parts.exposed_comm_s,
            "optimizer_s": parts.optimizer_s,
        }
