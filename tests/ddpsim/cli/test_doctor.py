from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpsim.cli import machine_findings as machine
from ddpsim.common.finding import Finding
from ddpsim.common.other_work import ProcessorClock, ProcessorUse

TOLD = {"name": "gloo", "able": "yes", "found": "it reduces", "proof": "true", "remedy": ""}


def install_torch(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise machine.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(machine.importlib.metadata, "version", installed)
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda _: ["numpy>=1", "torch>=2.11; extra == 'exec'"])


def finding(name: str) -> Finding:
    return next(each for each in machine.findings() if each.name == name)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let the executor's process leave what is given, or raise it."""
    install_torch(monkeypatch, "2.13")

    def leaves(what: Any) -> None:
        def run(command: list[str], **options: Any) -> Any:
            if command[0] != sys.executable:
                return subprocess.CompletedProcess(command, 0, "", "")
            assert options["timeout"] == machine.EXECUTOR_S
            if isinstance(what, Exception):
                raise what
            return subprocess.CompletedProcess(command, 0, what, "")

        monkeypatch.setattr(machine.subprocess, "run", run)

    return leaves


def last(ddpsim: Callable[..., Any]) -> dict[str, str]:
    result = ddpsim("doctor", "--json")
    assert result.code == 0
    finding: dict[str, str] = result.document["findings"][-1]
    return finding


def test_what_the_executor_finds_comes_last(ddpsim: Callable[..., Any], executor: Callable[[Any], None]) -> None:
    executor(json.dumps({"findings": [TOLD]}))
    assert last(ddpsim) == TOLD
    out = ddpsim("doctor").out
    assert "yes     gloo" in out
    assert out.count("  $ ") == len(ddpsim("doctor", "--json").document["findings"])


@pytest.mark.parametrize(
    ("what", "able", "found"),
    [
        (subprocess.TimeoutExpired("python", 90), "unknown", "TimeoutExpired"),
        (
            subprocess.CalledProcessError(1, "python", stderr="x\nImportError: libtorch"),
            "no",
            "1: ImportError: libtorch",
        ),
        ("not JSON", "unknown", "JSONDecodeError"),
        ("{}", "unknown", "KeyError"),
        (json.dumps({"findings": [{**TOLD, "able": "perhaps"}]}), "unknown", "'perhaps' is none of"),
        (json.dumps({"findings": [{"name": "gloo"}]}), "unknown", "TypeError"),
    ],
)
def test_an_executor_that_fails_is_a_finding(
    ddpsim: Callable[..., Any], executor: Callable[[Any], None], what: Any, able: str, found: str
) -> None:
    executor(what)
    told = last(ddpsim)
    assert (told["name"], told["able"]) == ("executor", able)
    assert found in told["found"]


@pytest.mark.parametrize(("version", "able"), [("2.13.0+cpu", "yes"), ("2.11", "yes"), ("2.9.1", "no"), (None, "no")])
def test_torch_is_held_against_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, version: str | None, able: str
) -> None:
    install_torch(monkeypatch, version)
    told = finding("torch")
    assert told.able == able
    assert bool(told.remedy) == (able == "no")


def test_gpus_are_counted_as_nvidia_smi_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    rows = "NVIDIA H100, 570.1, 81559 MiB\n" * 2

    def smi(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, rows, "")

    monkeypatch.setattr(machine.subprocess, "run", smi)
    assert finding("GPUs").found == "2: NVIDIA H100, 570.1, 81559 MiB"
    rows = ""
    assert finding("GPUs").able == "no"


@pytest.mark.usefixtures("busy_is_told")
@pytest.mark.parametrize(("all_s", "able"), [(6.0, "yes"), (17.0, "no")])
def test_a_busy_machine_is_no_place_to_measure(monkeypatch: pytest.MonkeyPatch, all_s: float, able: str) -> None:
    use = ProcessorUse("here", processors=2, job=1, wall_s=10.0, all_s=all_s, own_s=4.0)
    monkeypatch.setattr(ProcessorClock, "since", lambda self: use)
    found = finding("quiet")
    assert found.able == able
    assert f"other work takes {(all_s - 4) / 10:.1f} of 2 processors" in found.found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_executors_process_ends_with_a_doctor_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    python, child = tmp_path / "python", tmp_path / "child"
    python.write_text(f"#!/bin/sh\necho $$ > {child}.part && mv {child}.part {child}\nexec sleep 60\n")
    python.chmod(0o755)
    run = f"import sys; sys.executable = {str(python)!r}; from ddpsim.cli import main; main(['doctor'])"
    doctor = subprocess.Popen([sys.executable, "-c", run])
    wait_until(child.exists)
    number_of_child = int(child.read_text())
    doctor.send_signal(number)
    assert doctor.wait(30) == -number
    wait_until(lambda: not Path(f"/proc/{number_of_child}").exists())


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
