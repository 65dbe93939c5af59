"""Workloads: one rank's training iteration, recorded, imported or estimated."""

from ddpsim.workload.profile import Buffer, Phase, Workload

__all__ = ["Buffer", "Phase", "Workload"]
