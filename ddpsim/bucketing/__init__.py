"""The bucketing policy: which gradients share a bucket, and when a bucket may be launched.

A `Parameter` is a name, a shape and a type; a `Bucket` the gradients that are reduced together; `BucketCaps` the caps
as torch's constructor takes them; a `BucketPlan` all buckets in launch order, with the call of torch's that makes
them. A `LaunchQueue` is the one rule of when a message may be launched: simulated events and autograd's hooks drive
the same one. `order` has what follows the order in which gradients arrive: predictors, agreement of ranks, when to
rebuild. Standard library only: the simulator and the executor both use it; neither has launching logic of its own.

Read first: `assign.py` (torch's assignment in plain Python), then `plan.py` and `launch.py`.

Public modules: assign, caps, compiled, drop, launch, order.agreement, order.arrivals, order.consensus, order.policy,
order.predictors, order.rebuild, order.replay, order.traces, plan, torch_caps.
"""

from ddpsim.bucketing.assign import Bucket, Parameter, assign_buckets
from ddpsim.bucketing.caps import BucketCaps
from ddpsim.bucketing.launch import LaunchQueue
from ddpsim.bucketing.plan import BucketPlan, initial_plan, plan_buckets, rebuilt_plan, unused_plan

__all__ = [
    "Bucket",
    "BucketCaps",
    "BucketPlan",
    "LaunchQueue",
    "Parameter",
    "assign_buckets",
    "initial_plan",
    "plan_buckets",
    "rebuilt_plan",
    "unused_plan",
]
