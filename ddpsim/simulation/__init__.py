"""The discrete-event simulation of DDP training: ranks, streams and the collectives where they meet."""

from ddpsim.simulation.engine import simulate, simulate_local, simulate_with_plan
from ddpsim.simulation.options import Options
from ddpsim.simulation.pace import Pace

__all__ = ["Options", "Pace", "simulate", "simulate_local", "simulate_with_plan"]
