from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ddpsim.bucketing import Parameter
from ddpsim.cli.app import run
from ddpsim.workload import Workload
from ddpsim.workload.files import save_workload
from ddpsim.workload.profile import Phase

_PROGRESS = re.compile(r": \d+ of \d+(, .* left)?$")


@dataclass(frozen=True)
class Result:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        """Standard output as JSON."""
        return json.loads(self.out)

    def refused(self, *parts: str) -> None:
        """Check for exit code 2 and one message that holds every part, and no traceback."""
        assert self.code == 2, self
        assert self.out == ""
        # On a busy machine a search may have told how far it is.
        said = [line for line in self.err.splitlines() if not _PROGRESS.search(line)]
        assert len(said) == 1, self.err
        assert "Traceback" not in self.err
        for part in parts:
            assert part in self.err, f"{part!r} not in {self.err!r}"


@pytest.fixture
def ddpsim(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the real command line in this process."""

    def command(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Save a GPU workload of four 1 MiB parameters: forward 4 ms, a gradient each 2 ms, optimizer 1 ms."""
    parameters = tuple(Parameter(f"layer{n}.weight", (512, 512)) for n in range(4))
    one = np.array([1.0])
    workload = Workload(
        name="tiny", device="V100", precision="fp32", batch_size=8, threads=None, estimated=True,
        parameters=parameters, buffers=(), forward=Phase(0.001 * one, 0.004 * one),
        backward=Phase(0.002 * one, 0.008 * one), optimizer=Phase(0.0005 * one, 0.001 * one),
        gradient_hook_s=np.array([[0.002, 0.0015, 0.001, 0.0005]]),
        gradient_ready_s=np.array([[0.008, 0.006, 0.004, 0.002]]), provenance={"source": "made by hand"},
    )  # fmt: skip
    path = tmp_path / "tiny.json"
    save_workload(workload, path)
    return path
