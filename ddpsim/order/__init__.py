"""Gradient order: how far arrivals agree, what to expect next, and when to rebuild buckets for it.

Standard library only, shared by the simulator and the executor, like the bucketing policy it feeds.
"""

from ddpsim.order.agreement import OrderReport, kendall_tau, order_report, plan_tau, ready_tau
from ddpsim.order.arrivals import Arrivals, arrivals_of, from_times
from ddpsim.order.consensus import CONSENSUS, arrange, consensus
from ddpsim.order.policy import OrderPolicy
from ddpsim.order.predictors import ByBranch, ByContext, ExponentialMean, LastArrival, MeanReady, Predictor, predictor
from ddpsim.order.rebuild import Never, Once, OnDrift, Rebuild, rebuild
from ddpsim.order.replay import OrderExchange, Rebuilt, conferences, replay

__all__ = [
    "CONSENSUS",
    "Arrivals",
    "ByBranch",
    "ByContext",
    "ExponentialMean",
    "LastArrival",
    "MeanReady",
    "Never",
    "OnDrift",
    "Once",
    "OrderExchange",
    "OrderPolicy",
    "OrderReport",
    "Predictor",
    "Rebuild",
    "Rebuilt",
    "arrange",
    "arrivals_of",
    "conferences",
    "consensus",
    "from_times",
    "kendall_tau",
    "order_report",
    "plan_tau",
    "predictor",
    "ready_tau",
    "rebuild",
    "replay",
]
