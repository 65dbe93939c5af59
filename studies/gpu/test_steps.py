"""Going through steps: time limits, what is left out, and which line says why one failed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from studies.gpu.steps import FAILED, OK, SKIPPED, Step, Steps, cause, document

SLEEPER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
TORCHRUN = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "run.py", line 3, in <module>
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
  error_file: <N/A>
============================================================
"""
NCCL = """
torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.29.3
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
[rank0]:[W123 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called
"""


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path, lambda line: None)


def code(name: str, text: str, limit_s: float = 20, **options: object) -> Step:
    return Step(name, ("-c", text), limit_s, **options)  # type: ignore[arg-type]


def test_each_step_runs_with_its_variables_and_gives_its_last_line(steps: Steps) -> None:
    step = code(
        "a",
        "import os; print(os.environ['NCCL_ALGO'], os.environ['OMP_NUM_THREADS'])",
        environment={"NCCL_ALGO": "Ring"},
    )
    (result,) = steps.run([step])
    assert (result.status, result.said) == (OK, "Ring 1")
    assert result.shown.startswith("NCCL_ALGO=Ring python -c")
    assert steps.result("a") == result


def test_what_succeeded_is_not_run_again_unless_its_command_changes(steps: Steps) -> None:
    step = code("a", "import time; print(time.time())")
    first, again = steps.run([step]), steps.run([step])
    assert first == again
    assert steps.run([code("a", "import time; print(time.time_ns())")]) != first


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_step_past_its_limit_is_ended_with_all_it_started(steps: Steps) -> None:
    begin = time.monotonic()
    (result,) = steps.run([code("slow", SLEEPER, limit_s=1)])
    assert (result.status, result.said) == (FAILED, "still running after 1 s")
    assert time.monotonic() - begin < 15
    child = Path("/proc") / steps.output("slow").strip()
    while time.monotonic() - begin < 20 and runs(child):
        time.sleep(0.05)
    assert not runs(child)


def runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_failure_is_followed_by_the_others_but_for_those_that_rest_on_it(steps: Steps) -> None:
    bad = code("bad", "raise ValueError('of this')")
    found = steps.run(
        [bad, code("after", "print(1)", after=("bad",)), code("other", "print(2)"), code("no", "", skip="no tf32")]
    )
    assert [(result.status, result.said) for result in found] == [
        (FAILED, "ValueError: of this"),
        (SKIPPED, "bad failed"),
        (OK, "2"),
        (SKIPPED, "no tf32"),
    ]


def test_a_step_that_has_more_to_do_has_not_succeeded(steps: Steps) -> None:
    (result,) = steps.run([code("bench", "print('stopped: 5 launches left')", unfinished="stopped: ")])
    assert (result.status, result.said) == (FAILED, "stopped: 5 launches left")


def test_output_that_cannot_be_read_is_shown_as_it_is(steps: Steps) -> None:
    (result,) = steps.run([code("run", "print('no document')", gives=lambda output: str(document(output)))])
    assert (result.status, result.said) == (OK, "no document")


def test_the_cause_is_nccls_or_an_exceptions_and_not_torchruns() -> None:
    assert cause("", TORCHRUN) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert cause("", NCCL).startswith("Duplicate GPU detected : rank 1")
    assert cause("host:1:2 [0] init.cc:7 NCCL WARN no socket\n", "x") == "no socket"
    assert cause("3 failed, 20 passed in 9 s\n", "") == "3 failed, 20 passed in 9 s"
    assert cause("", "error: --device cuda: torch sees no GPU") == "error: --device cuda: torch sees no GPU"


def test_a_document_is_found_among_what_nccl_says() -> None:
    assert document('NCCL version 2.29.3\n{\n  "a": {"b": 1}\n}\nhost:1 NCCL WARN bye\n') == {"a": {"b": 1}}
    with pytest.raises(ValueError, match="no JSON document"):
        document("NCCL version 2.29.3")
