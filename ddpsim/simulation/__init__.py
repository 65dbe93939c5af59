"""The discrete-event simulation of DDP training: ranks, streams and the collectives where they meet."""

from ddpsim.simulation.engine import Simulated, simulate, simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.iteration_profile import IterationProfile

__all__ = ["IterationProfile", "Options", "Simulated", "simulate", "simulate_local"]
