"""Every row of the table of options that exclude each other refuses what it says, in the package that it is of."""

from __future__ import annotations

from typing import Any

import pytest

from ddpexec.errors import OptionError
from ddpexec.running.settings import RunSettings
from ddpsim import BucketCaps, InputError, Options, load_workload
from ddpsim.bucketing import plan_buckets
from ddpsim.jobs.exclusions import EXECUTED, SHARED, SIMULATED, STOCK_TORCH, Exclusion, is_given, written
from ddpsim.jobs.pipeline import parse_pipeline

PARAMETERS = load_workload("mlp").parameters
VALUES: dict[str, dict[str, Any]] = {
    "order": {"order": "once"}, "assignment": {"assignment": "unused"}, "drop": {"drop": {"2": 0.5}},
    "drop_buckets": {"drop_buckets": "aligned"}, "compression": {"compression": "fp16"},
    "process_groups": {"process_groups": 2}, "scheme": {"scheme": "naive"}, "overlap": {"overlap": "off"},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "tensor_parallel": {"tensor_parallel": 2}, "expert_parallel": {"expert_parallel": 2},
    "pipeline": {"pipeline": parse_pipeline("1f1b:2", "pipeline")}, "accumulate": {"accumulate": 2},
    "compiled": {"compiled": True}, "input_stage": {"input_stage": "load=1ms"}, "beside": {"beside": None},
    "unused": {"unused": {1: ("2",)}, "find_unused_parameters": True}, "caps": {"caps": BucketCaps(bucket_cap_mb=1)},
    "plan": {"plan": plan_buckets(PARAMETERS, BucketCaps())}, "local_iterations": {"local_iterations": 2},
    "devices": {"devices": 2},
    "backend": {"backend": "mpi"}, "stragglers": {"stragglers": {1: 2.0}}, "comm": {"comm": "noop"},
    "fully_sharded": {"scheme": "fsdp2"}, "replicated": {"scheme": "dataparallel"},
}  # fmt: skip
"""A value of each option, and what it needs beside."""
PAIRS = [
    (kind, error, row, other)
    for kind, error, rows in (
        (Options, InputError, (*SHARED, *SIMULATED)), (RunSettings, OptionError, (*EXECUTED, *STOCK_TORCH)),
        (RunSettings, InputError, SHARED),
    )
    for row in rows
    for other in (row.refuses if row.needs is None else (row.needs,))
    if other != "beside"
]  # fmt: skip


def values_of(option: str) -> dict[str, Any]:
    name, _, value = option.partition("!")[0].partition("=")
    return {name: value} if value else VALUES[name]


@pytest.mark.parametrize(("kind", "error", "row", "other"), PAIRS, ids=lambda each: str(getattr(each, "option", each)))
def test_a_row_refuses_what_it_says(kind: Any, error: type[InputError], row: Exclusion, other: str) -> None:
    asked, beside = dict(values_of(row.option)), {} if row.needs else dict(values_of(other))
    if row.option == "drop_buckets=aligned" or row.option == "drop_buckets=remapped":
        asked |= VALUES["drop"]
    if row.needs:
        asked.pop(row.needs, None)
    with pytest.raises(error, match=r"both given|says nothing|is given without|has no"):
        kind(**{**beside, **asked})


def test_an_option_is_written_by_name_by_value_or_by_what_else_it_may_be() -> None:
    job = Options(backend="gloo", comm="noop", drop={"2": 0.5})
    names = "backend", "backend!nccl", "backend!gloo,nccl", "comm=noop", "comm=real"
    assert [is_given(job, name) for name in names] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert (written(job, "backend!nccl"), written(job, "drop"), written(job, "comm=noop")) == (
        "backend=gloo", "drop", "comm=noop",
    )  # fmt: skip
    assert not is_given(job, "backend", allowed=["backend"])
