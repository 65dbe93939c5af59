"""The bucketing policy: which gradients share a bucket, and when a bucket may be launched.

Standard library only. The simulator and the executor both use it; neither has launching logic of its own.
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
