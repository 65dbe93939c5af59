"""Gradient order: how far arrivals agree, what to expect next, and when to rebuild buckets for it.

Standard library only, shared by the simulator and the executor, like the bucketing policy it feeds. What a script needs
may be imported from here; it is read when it is first asked for. Functions named as their modules are imported from
those: `ddpsim.bucketing.order.consensus`, `ddpsim.bucketing.order.rebuild`, `ddpsim.bucketing.order.replay`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpsim.bucketing.order.agreement import OrderReport, kendall_tau, order_report, plan_tau, ready_tau
    from ddpsim.bucketing.order.arrivals import Arrivals, arrivals_of, from_times
    from ddpsim.bucketing.order.consensus import CONSENSUS, arrange
    from ddpsim.bucketing.order.policy import OrderPolicy
    from ddpsim.bucketing.order.predictors import (
        ByBranch,
        ByContext,
        ExponentialMean,
        LastArrival,
        MeanReady,
        Predictor,
        predictor,
    )
    from ddpsim.bucketing.order.rebuild import Never, Once, OnDrift, Rebuild
    from ddpsim.bucketing.order.replay import OrderExchange, Rebuilt, conferences

__all__ = [
    "CONSENSUS", "Arrivals", "ByBranch", "ByContext", "ExponentialMean", "LastArrival", "MeanReady", "Never", "OnDrift",
    "Once", "OrderExchange", "OrderPolicy", "OrderReport", "Predictor", "Rebuild", "Rebuilt", "arrange", "arrivals_of",
    "conferences", "from_times", "kendall_tau", "order_report", "plan_tau", "predictor", "ready_tau",
]  # fmt: skip

_MODULES = {
    "agreement": ("OrderReport", "kendall_tau", "order_report", "plan_tau", "ready_tau"),
    "arrivals": ("Arrivals", "arrivals_of", "from_times"),
    "consensus": ("CONSENSUS", "arrange"),
    "policy": ("OrderPolicy",),
    "predictors": ("ByBranch", "ByContext", "ExponentialMean", "LastArrival", "MeanReady", "Predictor", "predictor"),
    "rebuild": ("Never", "OnDrift", "Once", "Rebuild"),
    "replay": ("OrderExchange", "Rebuilt", "conferences"),
}
"""Where each name stands: a plain prediction, which has no order policy, reads none of these modules."""


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
