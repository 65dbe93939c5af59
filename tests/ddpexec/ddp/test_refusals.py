"""What a DDP refuses, at construction and later, and what it says of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import ExecutionError, ModelMismatchError, NeverReadyError, OptionError, ReadyTwiceError
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.errors import InputError, PlanError
from tests.ddpexec.ddp.test_options import BOTH, Odd
from tests.ddpexec.groups import ranks


@ranks.on(2)
def test_what_is_wrong_is_named(rank: int) -> None:
    def refuses(kind: type[Exception], *words: str, **options: Any) -> None:
        with pytest.raises(kind) as raised:
            DistributedDataParallel(Odd(), **options)
        assert isinstance(raised.value, InputError)
        for word in words:
            assert word in str(raised.value), str(raised.value)

    refuses(OptionError, "bucket_cap_mb='big'", bucket_cap_mb="big")
    refuses(InputError, "-1", bucket_cap_mb=-1)
    refuses(PlanError, "bucket_cap_mb_list is empty", bucket_cap_mb_list=[])
    refuses(PlanError, "`bucket_cap_mb_list=1`", "`bucket_cap_mb=2`", bucket_cap_mb_list=[1], bucket_cap_mb=2)
    refuses(OptionError, "bucket_cap_mb_list=3", bucket_cap_mb_list=3)
    refuses(OptionError, "dim=1", dim=1)
    refuses(OptionError, "delay_all_reduce_named_params", "plan", delay_all_reduce_named_params=[])
    refuses(OptionError, "comm='none'", comm="none")
    refuses(OptionError, "process_group is an empty list", process_group=[])
    refuses(InputError, "unknown rebuild policy 'often'", rebuild="often")
    refuses(OptionError, "device_ids", device_ids=[0, 1])
    for kind in BOTH:
        assert kind(Odd(), output_device=0).output_device is None
        with pytest.raises(ValueError, match="device_ids and output_device arguments only work with"):
            kind(Odd(), output_device=1)
    for kind, name, value, remedy in (
        ("int", "plan", 3, "BucketPlan"), ("str", "plan", "a.json", "load_plan"), ("int", "drop", 1, "LayerDrop"),
        ("int", "rebuild", 3, "once"), ("int", "predictor", 3, "exponential"), ("NoneType", "consensus", None, "rank0"),
        ("int", "observer", 3, "Observer"), ("str", "device_mesh", "cpu", "init_device_mesh"),
        ("bool", "mixed_precision", True, "_MixedPrecision"), ("str", "device_ids", "cuda", "[0]"),
    ):  # fmt: skip
        refuses(OptionError, f"{name}={value!r} is of type {kind}", remedy, **{name: value})
    for flag in ("init_sync", "find_unused_parameters", "static_graph", "gradient_as_bucket_view", "batched_grad_copy"):
        refuses(OptionError, f"{flag}='no' is neither True nor False", **{flag: "no"})
    refuses(OptionError, "bucket_cap_mb=True", bucket_cap_mb=True)
    refuses(OptionError, "bucket_cap_mb_list=[1, 'a']", bucket_cap_mb_list=[1, "a"])
    refuses(InputError, "bucket_cap_mb_list: bucket cap -2", bucket_cap_mb_list=[1, -2])
    refuses(PlanError, "`bucket_cap_mb_list=1`", "`first_bucket_mb=2`", bucket_cap_mb_list=[1], first_bucket_mb=2)
    group = dist.group.WORLD
    refuses(
        OptionError, "process_group and device_mesh", process_group=group, device_mesh=init_device_mesh("cpu", (2,))
    )
    refuses(OptionError, "Only 1D device mesh", "slice the mesh", device_mesh=init_device_mesh("cpu", (1, 2)))
    with pytest.raises(OptionError, match=r"same type of devices.*'cpu', 'meta'.*move the module to one type"):
        DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
    with pytest.raises(OptionError, match="module is of type list; give the torch"):
        DistributedDataParallel(list(Odd().parameters()))  # type: ignore[arg-type]
    plan = custom_plan(DistributedDataParallel(Odd()).reducer.model.policy, [[6, 5, 4, 3], [2, 1, 0]])
    refuses(OptionError, "a plan and bucket_cap_mb=3", plan=plan, bucket_cap_mb=3)
    with pytest.raises(PlanError, match="another model"):
        DistributedDataParallel(nn.Linear(2, 2), plan=plan)
    with pytest.raises(OptionError, match="doesn't have any parameter"):
        DistributedDataParallel(nn.ReLU())
    with pytest.raises(ModelMismatchError, match=r"parameter 1 \(bias\) of rank 1 is float32 of shape \(3,\)"):
        DistributedDataParallel(nn.ParameterDict({"a": torch.ones(2), "bias": torch.ones(2 + rank)}))
    with pytest.raises(ModelMismatchError, match="Rank 0 has 1 params, while rank 1 has inconsistent 2 params"):
        DistributedDataParallel(nn.ParameterList([torch.ones(2)] * 1 + [torch.ones(2)] * rank))
    own = custom_plan(DistributedDataParallel(Odd()).reducer.model.policy, [[6, 5, 4, 3], [2, 1, 0]][:: 1 - 2 * rank])
    with pytest.raises(ModelMismatchError, match="bucket 0"):
        DistributedDataParallel(Odd(), plan=own)
    ddp = DistributedDataParallel(Odd())
    ddp(torch.ones(1, 8), skip=1).main.sum().backward()
    with pytest.raises(NeverReadyError) as never:
        ddp(torch.ones(1, 8))
    assert "layers.1.weight, layers.1.bias" in str(never.value)
    assert "find_unused_parameters=True" in str(never.value)
    assert "all `forward` function outputs participate in calculating loss" in str(never.value)
    ddp = DistributedDataParallel(Odd(), bucket_cap_mb=0)
    output = ddp(torch.ones(1, 8)).main.sum()
    output.backward(retain_graph=True)
    ddp = DistributedDataParallel(Odd(), find_unused_parameters=True)
    with pytest.raises(ReadyTwiceError, match=r"\(layers\.\d\.(weight|bias)\) was ready twice"):
        ddp(torch.ones(1, 8, requires_grad=True), checkpointed="reentrant").main.sum().backward()


@ranks.on(1)
def test_misuse_after_construction_is_named(rank: int) -> None:
    def future_of(value: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(value)
        return future

    hooks = {
        "callback must return a torch.futures.Future object, but got int for bucket 0": lambda state, bucket: 3,
        "of bucket 0 holds str; let it hold one tensor": lambda state, bucket: future_of("a"),
        "of bucket 0 holds 1 elements, the bucket 224": lambda state, bucket: future_of(torch.ones(1)),
    }
    for words, hook in hooks.items():
        ddp = DistributedDataParallel(Odd())
        ddp.register_comm_hook(None, hook)
        with pytest.raises(ExecutionError, match=words):
            ddp(torch.ones(1, 8)).main.sum().backward()
        assert words in str(ddp._get_ddp_logging_data()["error"])
        with pytest.raises(ExecutionError, match=f"previous backward on rank 0 broke off before .*: .*{words}"):
            ddp(torch.ones(1, 8))
    with pytest.raises(ValueError, match=r"must take \(state, bucket\), it takes \(bucket\)"):
        DistributedDataParallel(Odd()).register_comm_hook(None, lambda bucket: bucket)
    named = r"gradient of parameter \d \(layers\.\d\.(weight|bias)\) of rank 0 is torch.float64 .* holds torch.float32"
    for view in (False, True):
        ddp = DistributedDataParallel(Odd(), gradient_as_bucket_view=view)
        ddp.module.double()
        with pytest.raises(ExecutionError, match=named):
            ddp(torch.ones(1, 8).double()).main.sum().backward()
