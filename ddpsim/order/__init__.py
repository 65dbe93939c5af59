"""Gradient order: how far arrivals agree, what to expect next, and when to rebuild buckets for it.

Standard library only, shared by the simulator and the executor, like the bucketing policy it feeds.
"""

from ddpsim.order.agreement import OrderReport, kendall_tau, order_report, plan_tau
from ddpsim.order.arrivals import Arrivals, arrivals_of, from_times
from ddpsim.order.consensus import CONSENSUS, arrange, consensus
from ddpsim.order.predictors import ExponentialMean, LastArrival, MeanReady, Predictor, predictor
from ddpsim.order.rebuild import Never, Once, OnDrift, OrderPolicy, Rebuild, Rebuilt, rebuild, replay

__all__ = [
    "CONSENSUS",
    "Arrivals",
    "ExponentialMean",
    "LastArrival",
    "MeanReady",
    "Never",
    "OnDrift",
    "Once",
    "OrderPolicy",
    "OrderReport",
    "Predictor",
    "Rebuild",
    "Rebuilt",
    "arrange",
    "arrivals_of",
    "consensus",
    "from_times",
    "kendall_tau",
    "order_report",
    "plan_tau",
    "predictor",
    "rebuild",
    "replay",
]
