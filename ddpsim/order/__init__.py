"""Gradient order: how far arrivals agree, what to expect next, and when to rebuild buckets for it.

Standard library only, shared by the simulator and the executor, like the bucketing policy it feeds. What a script needs
may be imported from here; it is read when it is first asked for. Functions named as their modules are imported from
those: `ddpsim.order.consensus`, `ddpsim.order.rebuild`, `ddpsim.order.replay`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpsim.order.agreement import OrderReport as OrderReport
    from ddpsim.order.agreement import kendall_tau as kendall_tau
    from ddpsim.order.agreement import order_report as order_report
    from ddpsim.order.agreement import plan_tau as plan_tau
    from ddpsim.order.agreement import ready_tau as ready_tau
    from ddpsim.order.arrivals import Arrivals as Arrivals
    from ddpsim.order.arrivals import arrivals_of as arrivals_of
    from ddpsim.order.arrivals import from_times as from_times
    from ddpsim.order.consensus import CONSENSUS as CONSENSUS
    from ddpsim.order.consensus import arrange as arrange
    from ddpsim.order.policy import OrderPolicy as OrderPolicy
    from ddpsim.order.predictors import ByBranch as ByBranch
    from ddpsim.order.predictors import ByContext as ByContext
    from ddpsim.order.predictors import ExponentialMean as ExponentialMean
    from ddpsim.order.predictors import LastArrival as LastArrival
    from ddpsim.order.predictors import MeanReady as MeanReady
    from ddpsim.order.predictors import Predictor as Predictor
    from ddpsim.order.predictors import predictor as predictor
    from ddpsim.order.rebuild import Never as Never
    from ddpsim.order.rebuild import Once as Once
    from ddpsim.order.rebuild import OnDrift as OnDrift
    from ddpsim.order.rebuild import Rebuild as Rebuild
    from ddpsim.order.replay import OrderExchange as OrderExchange
    from ddpsim.order.replay import Rebuilt as Rebuilt
    from ddpsim.order.replay import conferences as conferences

_MODULES = {
    "CONSENSUS": "consensus",
    "Arrivals": "arrivals",
    "ByBranch": "predictors",
    "ByContext": "predictors",
    "ExponentialMean": "predictors",
    "LastArrival": "predictors",
    "MeanReady": "predictors",
    "Never": "rebuild",
    "OnDrift": "rebuild",
    "Once": "rebuild",
    "OrderExchange": "replay",
    "OrderPolicy": "policy",
    "OrderReport": "agreement",
    "Predictor": "predictors",
    "Rebuild": "rebuild",
    "Rebuilt": "replay",
    "arrange": "consensus",
    "arrivals_of": "arrivals",
    "conferences": "replay",
    "from_times": "arrivals",
    "kendall_tau": "agreement",
    "order_report": "agreement",
    "plan_tau": "agreement",
    "predictor": "predictors",
    "ready_tau": "agreement",
}
"""Where each name stands: a plain prediction, which has no order policy, reads none of these modules."""


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *_MODULES})
