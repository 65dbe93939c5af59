"""A tuner's rounds: four ranks, a second one after a shift, a rank that dies in one, and what none of them leaves."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import ddpexec
from ddpexec.tuning import tuner as tuner_module
from ddpexec.tuning.control_channel import ControlChannel
from ddpexec.tuning.rewrapping import caps_in_force
from ddpexec.tuning.tuner import OBSERVED, WARM_UP
from tests.ddpexec.groups import ranks
from tests.ddpexec.tuning.test_tuner import KINDS, STOCK, predict_at_once, train, wrapped


def on_four(rank: int, kind: str) -> tuple[float, int, Any]:
    predict_at_once()
    plain = train(wrapped(KINDS[kind]), 105, rank)
    model = wrapped(KINDS[kind])
    tuner = ddpexec.Tuner(model)
    found = train(model, 105, rank, lambda _: tuner.step())
    steps = tuner.decisions[0].steps
    tuner.close()
    apart = max(float((a - b).abs().max()) for a, b in zip(plain, found, strict=True))
    return apart, steps, caps_in_force(model)


@pytest.mark.parametrize("kind", KINDS)
def test_four_ranks_decide_at_one_step_for_one_plan_and_weights_differ_by_rounding_alone(kind: str) -> None:
    found = ranks.run(4, on_four, kind)
    assert max(apart for apart, *_ in found) < 1e-6
    assert len({steps for _, steps, _ in found}) == 1
    assert len({str(caps) for *_, caps in found}) == 1


def shifted(rank: int) -> list[tuple[int, int]]:
    """Train at one pace, then one rank at another; return where each round began and how long it was."""
    predict_at_once()
    mock.patch.object(tuner_module, "WINDOW", 20).start()
    model = wrapped(STOCK)
    tuner = ddpexec.Tuner(model)
    decided: list[int] = []

    def between(number: int) -> None:
        time.sleep(0.004)
        if not decided and tuner.decisions:
            decided.append(number)
        if rank == 1 and decided and number > decided[0] + 25:
            time.sleep(0.02)
        tuner.step()

    train(model, 300, rank, between)
    tuner.close()
    return [(each.first_step, each.steps) for each in tuner.decisions]


def test_a_shift_on_one_rank_starts_all_anew_at_one_step() -> None:
    one, other = ranks.run(2, shifted)
    assert one == other
    assert len(one) >= 2
    (first, steps), (second, _) = one[:2]
    assert first == 0
    assert steps < second


def losing(rank: int, tuned: bool, at: int) -> str:
    """Train on, while rank 1 dies; return what the other one meets."""
    predict_at_once()
    model = wrapped(STOCK)
    tuner = ddpexec.Tuner(model) if tuned else None

    def between(number: int) -> None:
        if rank == 1 and number == at:
            os._exit(17)
        if tuner is not None:
            tuner.step()

    try:
        train(model, 60, rank, between)
    except RuntimeError as error:
        return type(error).__name__
    return "no error"


@pytest.mark.parametrize("at", [WARM_UP + 1, WARM_UP + OBSERVED - 1, WARM_UP + OBSERVED + 8])
def test_a_rank_that_dies_while_it_is_tuned_ends_the_others_as_it_would_have(at: int) -> None:
    tuned, plain = (ranks.outcomes(2, losing, each, at, group_timeout_s=5) for each in (True, False))
    assert tuned[0].value == plain[0].value
    assert tuned[0].value != "no error"
    assert [each.exit_code for each in tuned] == [each.exit_code for each in plain]


def listening() -> int:
    """Return how many ports this process listens at."""
    own = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
    ]
    return sum(words[3] == "0A" and f"socket:[{words[9]}]" in own for words in lines)


def leaving(rank: int, folder: str) -> tuple[int, int, list[str], list[str]]:
    predict_at_once()
    here, out = Path(folder, f"here{rank}"), Path(folder, "out")
    here.mkdir()
    os.chdir(here)
    model = wrapped(STOCK)
    train(model, 2, rank)
    before = listening()
    tuner = ddpexec.Tuner(model, out=out)
    train(model, 105, rank, lambda _: tuner.step())
    tuner.close()
    tuner.close()
    assert torch.distributed.is_initialized()
    return before, listening(), os.listdir(here), sorted(os.listdir(out))


def test_no_port_stays_open_and_no_file_lies_outside_the_folder(tmp_path: Path) -> None:
    for before, after, here, out in ranks.run_own(2, leaving, str(tmp_path)):
        assert after == before
        assert here == []
        assert out == ["tuning.json"]


def said(rank: int) -> tuple[list[str], int, int, int]:
    """Return what is printed, words between ranks until it is decided and after it, and the steps after it.

    By a clock on which all steps are alike: a step that a busy machine lengthens would begin another round.
    """
    predict_at_once()
    now, words = [0.0], [0, 0]
    mock.patch.object(tuner_module, "time", SimpleNamespace(perf_counter=lambda: now[0])).start()
    model, printed = wrapped(STOCK), io.StringIO()
    with mock.patch.object(sys, "stderr", printed):
        tuner = ddpexec.Tuner(model)
        for name in ("gather", "follow", "measure_small_message_s"):
            heard = getattr(ControlChannel, name)

            def counted(self: Any, word: Any, heard: Any = heard) -> Any:
                words[bool(tuner.decisions)] += 1
                return heard(self, word)

            mock.patch.object(ControlChannel, name, counted).start()
        steps = []

        def between(number: int) -> None:
            steps.append(bool(tuner.decisions))
            now[0] += 0.02
            tuner.step()

        train(model, 150, rank, between)
        tuner.close()
    return printed.getvalue().splitlines(), *words, sum(steps)


def test_a_round_is_one_line_of_rank_0_and_after_it_ranks_say_nothing() -> None:
    (lines, before, after, steps), (others, *_) = ranks.run(2, said)
    assert len(lines) == 1
    assert lines[0].startswith("ddpexec.tuned: DistributedDataParallel(model")
    assert "; decided in " in lines[0]
    assert " ms (" in lines[0]
    assert others == []
    assert before > 3
    assert after == 0
    assert steps > 40
