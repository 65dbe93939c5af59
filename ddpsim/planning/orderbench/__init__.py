"""What an idea on the order of gradients is worth: predictors and policies on order traces, net of what they cost."""

from ddpsim.planning.orderbench.bench import Bench, BenchMachine, OrderBenchRow, bench

__all__ = ["Bench", "BenchMachine", "OrderBenchRow", "bench"]
