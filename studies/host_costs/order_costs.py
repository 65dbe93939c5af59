"""What conferring on an order and rebuilding buckets cost a rank's host: `python -m studies.host_costs.order_costs`.

Prints, as medians over models of 40 to 400 parameters, what `ddpsim.collectives.ddp_priors` holds: `expect_s` a
parameter, the slowest built-in predictor that looks at one backward and predicts; `agree_s` a parameter and rank, the
consensus and the order; `rebuild_s` a parameter, buckets assigned and viewed anew, with their queue.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from ddpexec.ddp.bucket_schedule import BucketSchedule
from ddpexec.ddp.buckets import ReducerOptions
from ddpexec.ddp.parameters import collect
from ddpexec.groups.process_groups import Communicator
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.bucketing.order.agreement import plan_tau
from ddpsim.bucketing.order.consensus import arrange, consensus
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.bucketing.order.predictors import PREDICTORS, predictor
from studies.command import parser

RANKS = 4


def median_s(task: Callable[[], object], repeats: int = 50) -> float:
    """Return the median time of `task` by the thread's own clock."""
    times = []
    for _ in range(repeats):
        begin = time.thread_time()
        task()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def costs_s(layers: int) -> dict[str, float]:
    """Return the three costs, a parameter, of a model of `layers` linear layers."""
    model = collect(nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)]), ())
    count = len(model.policy)
    ready = [1e-3 * index for index in range(count)][::-1]

    def expects(name: str) -> Callable[[], object]:
        found = predictor(name)

        def both() -> object:
            found.observe(ready)
            return found.predict()

        return both

    caps, order = BucketCaps(bucket_cap_mb=0.25), list(range(count))[::-1]
    groups = rebuilt_plan(model.policy, caps, order).groups()
    assert dist.group.WORLD is not None
    policy, alone = OrderPolicy(count), Communicator([dist.group.WORLD])
    schedule = BucketSchedule(model, rebuilt_plan(model.policy, caps, order), alone, ReducerOptions(caps=caps), policy)

    def agrees() -> object:
        agreed = arrange(consensus([ready] * RANKS, "slowest"))
        return plan_tau(groups, agreed)

    return {
        "expect_s": max(median_s(expects(name)) for name in PREDICTORS) / count,
        "agree_s": median_s(agrees) / count / RANKS,
        "rebuild_s": median_s(lambda: schedule.use_plan(rebuilt_plan(model.policy, caps, order), policy)) / count,
    }


def main() -> None:
    """Print the costs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    found = [costs_s(layers) for layers in (20, 60, 200)]
    for name in found[0]:
        each = [costs[name] for costs in found]
        shown = ", ".join(f"{cost * 1e6:.2f}" for cost in each)
        print(f"{name}: {statistics.median(each) * 1e6:.2f} us ({shown} us at 40, 120 and 400 parameters)")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
