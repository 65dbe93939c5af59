from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import typer

from ddpexec.__main__ import app as ddpexec
from ddpexec.demo import planned, real
from ddpsim import shipped
from ddpsim.cli.app import whole_command as ddpsim
from ddpsim.validation.result import ComparedQuantity, Validation

Called = list[tuple[str, list[str]]]


@pytest.fixture
def called(tmp_path: Path) -> Called:
    """The modules that the demo's second half runs, each with its words; none of them runs."""
    found: Called = []

    def noted(name: str, *arguments: object, shown: str | None = None) -> str:
        found.append((name, [str(argument) for argument in arguments]))
        return ""

    read = (
        "validate", "validation_row", "load_prediction", "read_trace", "json_text", "table", "draw_comparison",
        "pace_line",
    )  # fmt: skip
    with mock.patch.multiple(real, module=noted, **dict.fromkeys(read, mock.DEFAULT)) as unread:
        unread["json_text"].return_value = ""
        real.hold_against_a_real_run(tmp_path)
    return found


def test_the_demo_stays_on_the_processor_where_there_is_a_gpu_too(called: Called) -> None:
    lines = [" ".join(words) for _, words in called]
    ranks = [line for line in lines if "microbench" in line or "ddpexec run" in line]
    assert len(ranks) == 4
    assert all("--backend gloo" in line for line in ranks)
    assert [line for line in lines if "ddpexec capture" in line and "--device cpu" in line]


def test_every_command_of_the_demo_has_the_options_it_is_given(called: Called) -> None:
    parsed = [parse(name, words) for name, words in called]
    assert parsed == ["capture", "microbench", "calibrate", *["predict"] * 3, *["run"] * 3]


def test_the_demo_tells_the_pace_of_the_machine_from_the_error() -> None:
    """A machine 10 % faster in the run than when captured: the step is off by it, the overhead is not."""
    step, over = ComparedQuantity.of(1.0, 1.1), ComparedQuantity.of(0.1, 0.1)
    result = Validation(step, over, "run", (), (), {})
    assert real.pace_line({25: result}).startswith(
        "One process alone took 900.0 ms in these runs, 1000.0 ms when captured"
    )


def test_every_machine_and_workload_of_the_demo_is_shipped() -> None:
    workloads = {
        f"{model}@{of}-b{batch}" for model, batch in planned.MODELS.items() for of in planned.MACHINES.values()
    }
    assert workloads <= set(shipped.names("workload"))
    assert set(planned.MACHINES) <= set(shipped.names("topology"))


def parse(name: str, words: list[str]) -> str:
    """Parse a command line as its program would; return the command."""
    if name == "torch.distributed.run":
        launcher, (name, *words) = words[: words.index("-m")], words[words.index("-m") + 1 :]
        assert launcher == ["--standalone", "--nproc-per-node", str(real.RANKS)]
    group = typer.main.get_command(ddpexec()) if name == "ddpexec" else ddpsim()
    group.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
    return words[0]
