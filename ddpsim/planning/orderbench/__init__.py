"""What an idea on the order of gradients is worth: predictors and policies on order traces, net of what they cost."""

from ddpsim.planning.orderbench.bench import Bench, OrderBenchRow, bench
from ddpsim.planning.orderbench.machines import BenchMachine

__all__ = ["Bench", "BenchMachine", "OrderBenchRow", "bench"]
