"""Findings on a machine that need no torch: its processors, memory and GPUs, and what is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from ddpsim.common.finding import NO, UNKNOWN, YES, Finding, format_able
from ddpsim.common.other_work import ProcessorClock, find_other_work
from ddpsim.common.parent import die_with_parent
from ddpsim.common.version import __version__

EXECUTOR_S = 90.0
"""How long the executor's own findings may take; importing torch is most of it. Chosen by hand."""
_SMI_S = 20.0
_LISTENED_S = 0.3
"""How long processors are looked at, thirty of the kernel's ticks; chosen by hand."""
_SMI = "nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader"


def findings() -> Iterator[Finding]:
    """Yield the findings, those of the executor last, which need torch and run in a process of their own."""
    yield Finding("python", YES, f"{platform.python_version()}, {sys.executable}", "python --version")
    yield Finding("ddpsim", YES, f"{__version__}; predictions, plans and validations run here", "ddpsim --version")
    yield _cores()
    yield _quiet()
    yield _memory()
    yield _gpus()
    torch = _torch()
    yield torch
    if torch.able == YES:
        yield from _executor()


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("cores", YES, f"{count} that this process may use", "nproc")


def _quiet() -> Finding:
    proof = f"head -1 /proc/stat; sleep {_LISTENED_S:g}; head -1 /proc/stat"
    clock = ProcessorClock()
    time.sleep(_LISTENED_S)
    other = find_other_work([clock.since()])
    if other is None:
        return Finding("quiet", UNKNOWN, "this system has no /proc/stat", proof)
    result = f"other work takes {other.busy:.1f} of {other.processors} processors now"
    remedy = "measure when it has ended: runs are slower beside it; predictions are not affected" * other.disturbs
    return Finding("quiet", format_able(not other.disturbs), result, proof, remedy)


def _memory() -> Finding:
    proof = "grep -E 'MemTotal|MemAvailable' /proc/meminfo"
    try:
        with open("/proc/meminfo") as file:
            output = dict(line.split(":", 1) for line in file)
        total, free = (int(output[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("memory", UNKNOWN, "this system has no /proc/meminfo", proof)
    return Finding("memory", YES, f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of it free", proof)


def _gpus() -> Finding:
    if shutil.which("nvidia-smi") is None:
        remedy = "no GPU is needed: predictions know GPUs by name, and real runs can use CPUs over gloo"
        return Finding("GPUs", NO, "nvidia-smi is not here", _SMI, remedy)
    try:
        output = subprocess.run(_SMI.split(), capture_output=True, text=True, timeout=_SMI_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("GPUs", UNKNOWN, f"nvidia-smi: {error}", _SMI)
    rows = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    if output.returncode or not rows:
        return Finding("GPUs", NO, f"nvidia-smi: {(output.stderr or output.stdout).strip()[:200] or 'none'}", _SMI)
    return Finding("GPUs", YES, f"{len(rows)}: {'; '.join(dict.fromkeys(rows))}", _SMI)


def _torch() -> Finding:
    proof = "python -m pip show torch"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        remedy = 'pip install "ddpsim[exec]" for captures and real runs'
        return Finding("torch", NO, "not installed; predictions need none", proof, remedy)
    least = _find_oldest("torch")
    if least is None:
        return Finding("torch", YES, f"{version}; how new it has to be is not recorded here", proof)
    enough = _numbers(version) >= _numbers(least)
    remedy = "" if enough else f'pip install "torch>={least}"'
    return Finding("torch", format_able(enough), f"{version}, {least} or newer is needed", proof, remedy)


def _find_oldest(package: str) -> str | None:
    """Return the oldest version that this package's own metadata takes; None without an installation."""
    try:
        wanted = importlib.metadata.requires("ddpsim") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    matches = [re.match(rf"{package}\s*>=\s*([\d.]+)", each) for each in wanted]
    return next((match[1] for match in matches if match), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def _executor() -> Iterator[Finding]:
    proof = "python -m ddpexec doctor --json"
    if importlib.util.find_spec("ddpexec") is None:
        yield Finding("executor", NO, "ddpexec is not installed", proof, 'pip install "ddpsim[exec]"')
        return
    command = [sys.executable, "-m", "ddpexec", "doctor", "--json"]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=EXECUTOR_S, check=True, preexec_fn=die_with_parent
        )
        yield from [Finding.of(each) for each in json.loads(output.stdout)["findings"]]
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or ["no message"]
        yield Finding("executor", NO, f"it ended with {error.returncode}: {lines[-1][:300]}", proof)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        yield Finding("executor", UNKNOWN, f"{type(error).__name__}: {str(error)[:300]}", proof)
