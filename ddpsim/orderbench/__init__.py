"""What an idea on the order of gradients is worth: predictors and policies on order traces, net of what they cost."""

from ddpsim.orderbench.bench import Bench, Row, bench
from ddpsim.orderbench.machines import Machine

__all__ = ["Bench", "Machine", "Row", "bench"]
