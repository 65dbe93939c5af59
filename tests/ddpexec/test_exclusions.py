"""Every row of what excludes what: who reads it refuses two together in the row's words, and neither of them alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.__main__ import main as ddpexec
from ddpexec.ddp.buckets import ReducerOptions
from ddpexec.ddp.options import check_drop, check_scheme, first_plan
from ddpexec.lab.netlab.command import parse_topology
from ddpexec.running.pipeline_options import PipelineOptions, check_beside
from ddpexec.running.settings import RunSettings
from ddpexec.running.turns import check_turns
from ddpsim import BucketCaps, InputError, Options, load_topology, load_workload
from ddpsim.bucketing import plan_buckets
from ddpsim.cli.app import run as ddpsim
from ddpsim.cli.output import TableOutput
from ddpsim.common.options.exclusions import TABLE, Exclusion, is_given, refuse_excluded, written
from ddpsim.common.workers.requests import Workers
from ddpsim.explaining.machine import machine_of
from ddpsim.explaining.run_facts import RunFacts
from ddpsim.planning.pipeline import in_closed_form
from ddpsim.prediction.first import check_first
from ddpsim.schedules.sharded import FullyShard
from ddpsim.simulation.jobs.device_split import check_devices, cut_layers, put_on_devices
from ddpsim.simulation.jobs.pipeline import Pipeline, parse_pipeline
from ddpsim.topology.placement import place

WORKLOAD = load_workload("mlp")
PLAN = plan_buckets(WORKLOAD.parameters, BucketCaps())
VALUES: dict[str, dict[str, Any]] = {
    "order": {"order": "once"}, "assignment": {"assignment": "unused"}, "drop": {"drop": {"2": 0.5}},
    "drop_buckets=aligned": {"drop_buckets": "aligned", "drop": {"2": 0.5}},
    "drop_buckets=remapped": {"drop_buckets": "remapped", "drop": {"2": 0.5}},
    "drop_buckets": {"drop_buckets": "aligned"}, "compression": {"compression": "fp16"},
    "process_groups": {"process_groups": 2}, "scheme": {"scheme": "naive"}, "overlap": {"overlap": "off"},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "tensor_parallel": {"tensor_parallel": 2}, "expert_parallel": {"expert_parallel": 2},
    "pipeline": {"pipeline": parse_pipeline("1f1b:2", "pipeline")}, "accumulate": {"accumulate": 2},
    "compiled": {"compiled": True}, "input_stage": {"input_stage": "load=1ms"}, "unused": {"unused": {1: ("2",)}},
    "caps": {"caps": BucketCaps(bucket_cap_mb=1)}, "plan": {"plan": PLAN}, "local_iterations": {"local_iterations": 2},
    "devices": {"devices": 2, "backend": "nccl"}, "backend!nccl,rccl": {"backend": "mpi"},
    "backend!gloo,rccl": {"backend": "mpi"}, "stragglers": {"stragglers": {1: 2.0}}, "batch_size": {"batch_size": 2},
    "fully_sharded": {"scheme": "fsdp2"}, "replicated": {"scheme": "dataparallel"},
    "scheduled": {"scheme": "naive"}, "served": {"scheme": "parameter-server:servers=1"},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": (1, 2)}, "bucket_cap_mb": {"bucket_cap_mb": 1},
    "first_bucket_mb": {"first_bucket_mb": 1}, "stages_per_rank": {"stages_per_rank": 2},
    "stages": {"stages": 2}, "tensor_ranks": {"tensor_ranks": 2}, "host_update": {"host_update": 1.0},
    "offload": {"offload": True}, "csv": {"csv": True}, "as_json": {"as_json": True}, "workers": {"workers": 2},
    "scheduler": {"scheduler": "tcp://a:1"},
    "comm": {"comm": "noop"}, "remap_dropped": {"remap_dropped": True}, "static_graph": {"static_graph": True},
}  # fmt: skip
"""A value of each option of a dataclass, and what else it takes."""
TEXTS = {
    "nothing": "",
    "search": "--search", "plot": "--plot x.png", "report": "--report x.html", "schemes": "--schemes zero1,ddp",
    "out": "-o x.json", "bucket_cap_mb": "--bucket-cap-mb 1,2", "plan": "--plan x.json",
    "micro_batch_size": "--micro-batch-size 2", "global_batch_size": "--global-batch-size 64",
    "accumulate": "--accumulate 2", "first_bucket_mb": "--first-bucket-mb 1", "deadline": "--deadline 1h",
    "samples_per_second": "--samples-per-second 5", "samples_per_epoch": "--samples-per-epoch 5", "begin": "-b 8",
    "end": "-e 8", "factor": "-f 2", "measured": "--measured x", "chakra": "--chakra x",
    "tensor_parallel": "--tensor-parallel 2", "expert_parallel": "--expert-parallel 2", "pipeline": "--pipeline 1f1b:2",
    "bucket_cap_mb_list": "--bucket-cap-mb-list 1,2", "assignment": "--assignment initial",
    "all_": "--all", "from_": "--from x", "jitter": "--jitter 1%", "gpu": "--gpu A100", "gpu_file": "--gpu-file x",
    "memory_bandwidth": "--memory-bandwidth 1GB/s", "peak": "--peak amp=5T", "memory": "--memory 1GiB",
    "multiprocessors": "--multiprocessors 2", "precision": "--precision amp", "optimizer": "--optimizer adam",
    "one_gpu_step": "--one-gpu-step 1ms", "pace_of": "--pace-of x", "batch_size": "--batch-size 2",
    "clip_gradients": "--clip-gradients", "sequence_length": "--sequence-length 2", "without": "--without casts",
    "activation_checkpointing": "--activation-checkpointing", "step": "--step a:b", "device": "--device cpu",
    "local_iterations": "--local-iterations 2",
}  # fmt: skip
"""Flags of each option of a command."""

COMMANDS: list[Callable[[list[str]], object]] = []
"""Readers that run a command."""
Reader = Callable[[list[str]], object]


def made(kind: Callable[..., object], **given: object) -> Reader:
    """Return who makes a dataclass of options."""

    def read(names: list[str]) -> object:
        return kind(**given | {key: value for name in names for key, value in values_of(name).items()})

    return read


def values_of(option: str) -> dict[str, Any]:
    if option in VALUES:
        return VALUES[option]
    name, _, value = option.partition("=")
    return {name: value}


def command(program: Callable[[list[str]], Any], words: str) -> Reader:
    """Return who calls a command: it raises what the command says on standard error."""

    def read(names: list[str]) -> object:
        try:
            code = program([*words.split(), *(word for name in names for word in TEXTS[name].split())])
        except SystemExit as end:
            code = end.code
        return code

    COMMANDS.append(read)
    return read


def settings_of(names: list[str], *beside: str) -> RunSettings:
    made = made_of(RunSettings, [name for name in names if name not in beside])
    assert isinstance(made, RunSettings)
    return made


def made_of(kind: Callable[..., object], names: list[str]) -> object:
    return made(kind)(names)


def in_turns(names: list[str]) -> None:
    if "interleave" in names:
        settings = settings_of(names, "interleave", "step", "pipeline")
        check_turns(settings, step="step" in names, pipeline="pipeline" in names)


def on_devices(names: list[str]) -> None:
    one = load_workload("gpt2-small@a100-amp-b8")
    several = put_on_devices(one, cut_layers(one, 2), 1)
    options = made(Options)([name for name in names if name != "devices"])
    assert isinstance(options, Options)
    workload, devices = (several, 2) if "devices" in names else (one, 1)
    check_devices(workload, place(load_topology("dgx-a100"), 1, 8, devices), options)


def run_pipeline(names: list[str]) -> None:
    settings = settings_of(names, "pipeline", "step", "plan")
    if "pipeline" in names:
        asked = PipelineOptions(pipeline="gpipe")
        check_beside(asked, settings, step="step" in names, timed=False, plan="plan" in names)


def by_torch(names: list[str]) -> None:
    beside = {"plan": PLAN if "plan" in names else None, "step": "step" in names}
    for of in ("runs by torch's schemes", "runs by a schedule"):
        refuse_excluded(settings_of(names, "plan", "step"), of, beside=beside)


def wrapped(names: list[str]) -> None:
    options = made(ReducerOptions, caps=BucketCaps())([name for name in names if name != "drop"])
    assert isinstance(options, ReducerOptions)
    # What moves up needs layers that are left out.
    drop: Any = SimpleNamespace(names=[]) if {"drop", "gradient_as_bucket_view"} & {*names} else None
    check_drop(drop, options, [])


def by_scheme(names: list[str]) -> None:
    given = [*names, "make_optimizer"] if "scheme" in names and len(names) > 1 else names
    rows = TABLE["modules wrapped by a scheme"]
    check_scheme(**{each: each in given for row in rows for each in (row.option, *row.refuses, row.needs) if each})


def with_plan(names: list[str]) -> None:
    caps = made_of(BucketCaps, [name for name in names if name != "plan"])
    assert isinstance(caps, BucketCaps)
    parameters: Any = SimpleNamespace(policy=WORKLOAD.parameters)
    first_plan(parameters, caps, PLAN if "plan" in names else None, find_unused=False, static=False)


def lab(names: list[str]) -> None:
    texts = {"ranks": 2, "rate": "1gbit", "delay": "1ms", "topology": "dgx-1v"}
    if "topology" in names:
        parse_topology(*(texts[name] if name in names else None for name in texts))  # type: ignore[arg-type]


def explained(names: list[str]) -> None:
    facts = RunFacts(**dict.fromkeys(names, "dgx-1v"))
    if names != ["topo"]:
        machine_of(8, "V100", [], "nccl", facts)


def first(names: list[str]) -> None:
    options = made(Options)([name for name in names if name not in ("first", "beside")])
    assert isinstance(options, Options)
    if "first" in names:
        check_first(2, options)


def cut(names: list[str]) -> None:
    pipeline = made(Pipeline, boundary_bytes=8)(names)
    assert isinstance(pipeline, Pipeline)
    if "tensor_ranks" in names:
        in_closed_form(WORKLOAD, load_topology("dgx-1v").place(1), pipeline)


def estimate(names: list[str]) -> object:
    of_a_model = not {"all_", "from_", "step"} & {*names}
    return command(ddpexec, "estimate -o x.json" + " --model resnet50" * of_a_model)(names)


COMMANDS.append(estimate)


def one_stage(names: list[str]) -> None:
    values = [VALUES["accumulate"]] if "accumulate" in names else []
    if "pipeline" in names:
        values.append({"pipeline": parse_pipeline("1f1b:1", "pipeline")})
    Options(**{key: value for each in values for key, value in each.items()})


PLANNING = "plan --workload resnet50 --topology dgx-1v"
READERS: dict[str, list[Reader]] = {
    "every job": [made(Options), made(RunSettings)], "predictions": [made(Options)],
    "ranks of several devices": [on_devices], "pipelines of one stage": [one_stage],
    "plans": [made(Options)], "runs": [made(RunSettings)],
    "runs by torch's DDP": [made(RunSettings)], "bucket caps": [made(BucketCaps)],
    "pipelines": [made(Pipeline)], "cut layers": [cut], "fully_shard": [made(FullyShard)],
    "tables": [made(TableOutput)], "workers": [made(Workers)], "predict --first": [first],
    "plan files": [command(ddpsim, "sweep --workload resnet50 --topology dgx-1v")],
    "predict --chakra": [command(ddpsim, "predict --workload resnet50 --topology dgx-1v")],
    "plan": [command(ddpsim, PLANNING)], "plan --schemes": [command(ddpsim, PLANNING)],
    "plan --search": [command(ddpsim, f"{PLANNING} --search")],
    "plan --bucket-cap-mb": [command(ddpsim, PLANNING)],
    "compare": [command(ddpsim, "compare --workload resnet50 --topology dgx-1v")],
    "collective": [command(ddpsim, "collective --op allreduce --topology dgx-1v")], "explain": [explained],
    "run --step": [command(ddpexec, "run --out nowhere")], "runs by torch's schemes": [by_torch],
    "runs by a schedule": [by_torch],
    "run --pipeline": [run_pipeline], "run --interleave": [in_turns], "wrapped modules": [wrapped],
    "modules wrapped with a plan": [with_plan], "modules wrapped by a scheme": [by_scheme], "netlab": [lab],
    "estimate": [estimate],
    "capture": [command(ddpexec, "capture -o x.json")],
}  # fmt: skip
"""Who reads each part of the table."""


PAIRS = [
    pytest.param(of, reader, row, other, id=f"{of}-{row.option}-{other}-{number}")
    for of, readers in READERS.items()
    for row in TABLE[of]
    for other in (row.refuses if row.needs is None else (row.needs,))
    # The job beside another is one of its own, and has its own tests.
    if other != "beside"
    for number, reader in enumerate(readers)
]


def said(reader: Reader, names: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is said of these options; nothing where they are not refused."""
    capsys.readouterr()
    try:
        reader(names)
    except InputError as error:
        return str(error)
    return capsys.readouterr().err


@pytest.mark.parametrize(("of", "reader", "row", "other"), PAIRS)
def test_a_row_refuses_what_it_says_and_nothing_else(
    of: str, reader: Reader, row: Exclusion, other: str, capsys: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = max(re.split(r"`[^`]*`|\{\w+\}", row.sentence), key=len)
    refused = [row.option, other] if row.needs is None else [row.option]
    assert words in said(reader, refused, capsys)
    for names in [[row.option], [other]] if row.needs is None else [[row.option, other]]:
        if reader in COMMANDS:
            # Whole commands would run.
            every = {each for row in TABLE[of] for each in (row.option, *row.refuses, row.needs) if each is not None}
            # What else the option needs does not matter here.
            needed = {each.needs for each in TABLE[of] if each.needs is not None and each.option in names}
            refuse_excluded(None, of, beside={each: each in {*names, *needed} for each in every})
        else:
            assert words not in said(reader, names, capsys)


def test_every_row_of_the_table_is_read() -> None:
    assert {*TABLE} == {*READERS}


def test_an_option_is_written_by_name_by_value_or_by_what_else_it_may_be() -> None:
    job = Options(backend="gloo", comm="noop", drop={"2": 0.5})
    names = "backend", "backend!nccl", "backend!gloo,nccl", "comm=noop", "comm=real"
    assert [is_given(job, name) for name in names] == [True, True, False, True, False]
    assert (written(job, "backend!nccl"), written(job, "drop"), written(job, "comm=noop")) == (
        "backend=gloo", "drop", "comm=noop",
    )  # fmt: skip
    assert not is_given(job, "backend", allowed=["backend"])
    assert written(BucketCaps(bucket_cap_mb_list=(1.0, 25.0)), "bucket_cap_mb_list") == "bucket_cap_mb_list=1,25"
