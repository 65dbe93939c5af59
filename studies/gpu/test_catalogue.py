"""The steps that a GPU gets: commands that exist, with options that they have, and the report on what they leave."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from ddpexec.__main__ import app
from ddpexec.capturing.models import ESTIMATED
from ddpsim.common.files import json_text, write_whole
from ddpsim.workload.files import load_workload, save_workload
from studies.benchmarks import executor
from studies.gpu import alone
from studies.gpu.catalogue import Scope, fastest, machine_step, mean_of, slowed, step_of, steps
from studies.gpu.machine import description
from studies.gpu.report import report
from studies.gpu.steps import FAILED, OK, Result, Step, Steps

MACHINE = {"device": "cuda", "model": "H100", "name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "torch": "2.13.0"}
RUN = {
    "iteration_s": 0.1, "forward_s": 0.03, "backward_compute_s": 0.05, "exposed_comm_s": 0.01, "ddp_overhead_s": 0.002,
    "optimizer_s": 0.008,
}  # fmt: skip
BENCH = "case\nmlp-1-copy-default 1.01\ngeometric mean of 8 cases 1.0100 [1.0050, 1.0150]\n"


def scope(out: Path, **options: object) -> Scope:
    return Scope(out, {**MACHINE, **options}, quick=False)


def named(listed: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in listed}


def test_every_model_is_captured_in_each_precision_at_two_sizes_under_its_name(tmp_path: Path) -> None:
    captures = [step for step in steps(scope(tmp_path)) if step.name.startswith("capture-")]
    assert len(captures) == len({step.name for step in captures}) == 6 * len(ESTIMATED)
    paths = {step.name: Path(step.arguments[-1]).name for step in captures}
    assert paths["capture-resnet50-bf16-b64"] == "resnet50@h100-bf16-b64.json.gz"
    assert not any(step.skip for step in captures)


def test_what_a_gpu_lacks_is_left_out(tmp_path: Path) -> None:
    listed = named(steps(scope(tmp_path, model="V100", capability=[7, 0])))
    assert listed["capture-mlp-tf32-b64"].skip == "this GPU has no tf32"
    assert listed["capture-mlp-fp32-b64"].skip == ""


def test_several_ranks_are_tried_once_and_then_by_algorithm_and_protocol(tmp_path: Path) -> None:
    listed = named(steps(scope(tmp_path)))
    step = listed["several-tree-ll128"]
    assert step.environment.items() >= {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128", "NCCL_SHM_DISABLE": "1"}.items()
    assert step.after == ("several",)
    assert sum(name.startswith("several-") for name in listed) == 6
    assert [step.name for step in listed.values() if step.may_fail] == [n for n in listed if n.startswith("several")]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_command_has_the_options_it_is_given(tmp_path: Path, device: str, quick: bool) -> None:
    made = steps(replace(scope(tmp_path, device=device), quick=quick))
    assert len({step.name for step in made}) == len(made)
    for step in made:
        check(list(step.arguments))


def check(arguments: list[str]) -> None:
    """Parse a step's command line as its program would."""
    if arguments[:2] == ["-m", "torch.distributed.run"]:
        arguments = arguments[arguments.index("-m", 1) :]
    program, *rest = arguments[arguments[0] == "-m" :]
    if program in ("ddpexec", "studies.gpu.host_of_its_own"):
        command = typer.main.get_command(app()).commands[rest[0]]  # type: ignore[attr-defined]
        command.make_context(rest[0], rest[1:])
    elif program == "studies.gpu.alone":
        alone.parsed(rest)
    elif program == "studies/benchmarks/executor.py":
        executor.parsed(rest)
    else:
        assert program == "pytest"


def leave(kept: Steps, name: str, output: object, status: str = OK) -> Result:
    """Leave what a step would."""
    text = output if isinstance(output, str) else json_text(output)
    result = Result(name, status, "as said", 12.0, "python")
    write_whole(kept.folder(name) / "stdout.txt", text)
    write_whole(kept.folder(name) / "stderr.txt", "")
    write_whole(kept.folder(name) / "result.json", json_text(asdict(result)))
    return result


def several(factor: float) -> dict[str, object]:
    sizes = (4096, 16384)
    return {"results": [{"size": size, "in_place": {"time": size / 100 * factor}} for size in sizes]}


def test_the_report_holds_the_figures_of_every_step(tmp_path: Path) -> None:
    kept, made = Steps(tmp_path, print), scope(tmp_path)
    outputs: dict[str, object] = {step.name: RUN for step in steps(made) if step.name.startswith(("run-", "shared-"))}
    outputs |= {"alone-resnet50": {"step_s": 0.09}, "run-resnet50-torch": {**RUN, "iteration_s": 0.095}}
    outputs |= {"several": several(1), "several-ring-ll": several(2)}
    outputs |= {"under-load": {"ddp": {"compute_slowdown": 1.25, "communication_slowdown": 1.5}}}
    outputs |= {"copies": {"compute_slowdown": 1.125, "copy_slowdown": 1.375}}
    results = [leave(kept, name, output) for name, output in outputs.items()] + [leave(kept, "bench", BENCH)]
    shipped = load_workload("resnet50@h100-bf16-b32")
    save_workload(shipped, made.workload("resnet50", "bf16", 32))
    save_workload(replace(shipped, name="resnet50@h100-fp32-b32"), made.workload("resnet50", "fp32", 32))
    text = report(made, results, kept)
    estimate = next(line for line in text.splitlines() if line.startswith("| resnet50@h100-bf16-b32")).split(" | ")
    assert estimate[-1].removesuffix(" |") == estimate[-2]
    for line in (
        "# One GPU",
        "| several-ring-ll | ok | 12 | as said |",
        "100.00 (+11.1 %) | 100.00 (+11.1 %) | 95.00 (+5.6 %) | 100.00 (+11.1 %) |",
        "| 4 | torch | 100.00 | 30.00 | 50.00 | 10.00 | 2.00 | 8.00 |",
        "geometric mean of 8 cases 1.0100",
        "| collectives over gloo | 1.250 | 1.500 |",
        "| plain copies | 1.125 | 1.375 |",
        "| bytes | NCCL's choice us | Ring LL us |",
        "| 4,096 | 41.0 | 81.9 |",
    ):
        assert line in text, text


def test_the_report_repeats_what_nccl_says_and_leaves_empty_tables_out(tmp_path: Path) -> None:
    kept = Steps(tmp_path, print)
    result = leave(kept, "several", "", FAILED)
    write_whole(kept.folder("several") / "stderr.txt", "x NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n")
    text = report(scope(tmp_path), [result], kept)
    assert "NCCL takes no two ranks on one GPU here: Duplicate GPU detected : rank 1 and rank 0" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Steps", "## Allreduce of two ranks"]


def test_what_steps_give_is_one_line() -> None:
    assert step_of(json_text(RUN)) == "100.00 ms a step"
    assert step_of('{"step_s": 0.05}') == "50.00 ms a step"
    assert slowed('{"compute_slowdown": 1.5, "compute_s": 2}') == "compute_slowdown 1.500"
    assert mean_of(BENCH) == "geometric mean of 8 cases 1.0100 [1.0050, 1.0150]"
    assert fastest(json_text({"results": [{"size": 4096, "in_place": {"time": 41.2}}]})) == "4,096 B in 41 us"


def test_a_gpu_is_described_by_what_steps_are_chosen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "NVIDIA H100 80GB HBM3"
    properties = SimpleNamespace(name=name, total_memory=80 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 3))
    found = description(torch.device("cuda"))
    assert found.items() >= {"device": "cuda", "model": "H100", "capability": [9, 0], "nccl": "2.29.3"}.items()
    assert machine_step("cuda").gives(json_text(found)) == f"{name}, torch {torch.__version__}"
