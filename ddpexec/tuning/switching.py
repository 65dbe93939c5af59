"""Plans in force one after the other in one wrapped module, each made once and at hand for its next turn.

What a new reducer costs is its buckets' memory, touched for the first time in the step that follows: of 100 MiB some
25,000 page faults. A reducer that waits costs one call of its hook a gradient, which torch ends at once, as in
`no_sync()`. So torch's reducers wait for their next turn, and the one that the training came with goes back into force.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.running.stock import REDUCER_ORDER
from ddpexec.tuning.plan import Groups, TrialPlan
from ddpexec.tuning.rewrapping import Stock, Wrapped
from ddpsim.bucketing import BucketCaps

MADE = 1
"""Steps after a plan was made that do not count: its memory is touched for the first time."""
WAITING_BYTES = 1 << 30
"""Gradients up to which reducers wait: each holds as many bytes of the host's memory. By hand; on a GPU, whose memory a
training has filled, none waits."""
_IN_FORCE = (
    "reducer",
    "logger",
    "_bucket_config",
    "bucket_bytes_cap",
    "bucket_bytes_cap_list",
    "bucket_bytes_cap_default",
    "_has_rebuilt_buckets",
    "_static_graph_delay_allreduce_enqueued",
    REDUCER_ORDER,
)
"""What of torch's DDP belongs to its reducer; the last is ours."""


class PlanSwitch:
    """Lets one wrapped module reduce by one plan after another; every rank switches between the same two steps.

    Args:
        wrapped: torch's DDP or ours, or ours under a schedule.
        present: the plan in force.

    Attributes:
        waits: whether a plan of torch's that is left waits for its next turn: where that takes little of the host's
            memory, and its reducer has nothing to remember of steps that another one reduces.
    """

    def __init__(self, wrapped: Wrapped, present: TrialPlan) -> None:
        self._wrapped, self._now = wrapped, present
        self._waiting: dict[tuple[str, Groups], dict[str, Any]] = {}
        size = sum(each.nbytes for each in wrapped.parameters() if each.requires_grad)
        self.waits = wrapped.device.type == "cpu" and size <= WAITING_BYTES and isinstance(wrapped, Stock)
        # Hooks of a reducer that searches graphs note which parameters are used in steps that another one reduces too;
        # in force again it would take those for used in its own step, and end the training where one is not.
        self.waits &= not wrapped.find_unused_parameters or wrapped.static_graph

    def use(self, plan: TrialPlan) -> int:
        """Reduce by `plan` from the next forward on; return the steps from then on that do not count."""
        if plan.key == self._now.key:
            return 0
        wrapped = self._wrapped
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.use_schedule(plan.caps, plan.groups, plan.schedule)
        left, self._now = self._now, plan
        if not isinstance(wrapped, Stock):
            return MADE
        state: dict[str, Any] = {name: wrapped.__dict__.get(name) for name in _IN_FORCE}
        if self.waits:
            self._waiting[left.key] = state
        if plan.key in self._waiting:
            wrapped.__dict__.update(self._waiting.pop(plan.key))
            return 0
        make_reducer(wrapped, plan.caps, plan.groups)
        if not self.waits:
            state["reducer"]._remove_autograd_hooks()
        return MADE

    def forget(self, plan: TrialPlan | None = None) -> None:
        """Let this plan wait no longer, or any."""
        for key in [plan.key] if plan is not None else list(self._waiting):
            if (state := self._waiting.pop(key, None)) is not None:
                state["reducer"]._remove_autograd_hooks()

    def settle(self) -> None:
        """Let nothing be left of other plans than the one in force; every rank does, between the same two steps."""
        self.forget()
        if isinstance(self._wrapped, DistributedDataParallel):
            self._wrapped.release_streams()


def make_reducer(wrapped: Stock, caps: BucketCaps, groups: Sequence[Sequence[int]]) -> None:
    """Give torch's DDP a new reducer, as its own constructor makes it, but with the rebuilt buckets from the start.

    torch begins with the order of registration and learns that of the gradients in the first backward, after which it
    makes all buckets anew. The order is known here: the new reducer is given the parameters in it, and asked to rebuild
    at once, while its memory is untouched. Where it never rebuilds, with `find_unused_parameters`, it begins with
    these buckets.
    """
    arguments: dict[str, Any] = caps.torch_arguments()
    cap, listed = arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list")
    config = type(wrapped._bucket_config).create(bucket_cap_mb=cap, bucket_cap_mb_list=listed, use_python_reducer=False)
    wrapped._bucket_config = config
    wrapped.bucket_bytes_cap = config.bucket_bytes_cap
    wrapped.bucket_bytes_cap_list = list(config.per_bucket_bytes_caps)
    wrapped.bucket_bytes_cap_default = config.first_bucket_bytes_cap < config.bucket_bytes_cap
    parameters, sparse = wrapped._build_params_for_reducer()  # type: ignore[no-untyped-call]
    order = [index for group in groups for index in group]
    parameters, sparse = [parameters[index] for index in order], [sparse[index] for index in order]
    names = wrapped._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
    with _begin_with(groups):
        wrapped._ddp_init_helper(parameters, sparse, names, wrapped.static_graph)  # type: ignore[no-untyped-call]
    wrapped.__dict__[REDUCER_ORDER] = order
    if wrapped.static_graph:
        wrapped.reducer._set_static_graph()
        wrapped.logger._set_static_graph()  # type: ignore[union-attr]
        wrapped._static_graph_delay_allreduce_enqueued = False
    wrapped.reducer._push_all_rebuilt_params()
    wrapped._has_rebuilt_buckets = wrapped.reducer._rebuild_buckets()


@contextlib.contextmanager
def _begin_with(groups: Sequence[Sequence[int]]) -> Iterator[None]:
    """Let the next reducer begin with these buckets of parameters that it is given in their order."""
    torchs: Any = dist
    original = torchs._compute_bucket_assignment_by_size

    def given(_: Sequence[Tensor], limits: Sequence[int], *__: object) -> tuple[list[list[int]], list[int]]:
        numbers, begin = list[list[int]](), 0
        for group in groups:
            numbers.append(list(range(begin, begin + len(group))))
            begin += len(group)
        return numbers[::-1], [max(limits)] * len(numbers)

    torchs._compute_bucket_assignment_by_size = given
    try:
        yield
    finally:
        torchs._compute_bucket_assignment_by_size = original
