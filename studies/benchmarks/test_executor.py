from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from studies.benchmarks.executor import MODELS, Case, cases, conditions, judged, measure, processes  # noqa: E402
from studies.benchmarks.ratios import ARMS, Measured  # noqa: E402
from tests.ddpexec.groups import ranks  # noqa: E402


def test_one_rank_has_a_gpu_for_itself_and_several_share_it() -> None:
    assert processes("cpu", 2) == {"start": "fork", "backend": "gloo"}
    assert processes("cuda", 1) == {"start": "spawn", "backend": "nccl"}
    assert processes("cuda", 2) == {"start": "spawn", "backend": "gloo"}


def test_every_case_can_be_measured_by_spawned_ranks() -> None:
    found = ranks.run_own(1, measure, Case("small", 1, "view", "default"), "cpu", 1, 0, False, start="spawn")
    parameters, buckets, blocks = found[0]
    assert (parameters, buckets) == (2000, 1)
    assert [len(arm) for block in blocks for arm in block] == [2] * len(ARMS)


def test_ranks_that_share_a_gpu_are_told_of_apart() -> None:
    times = [[[0.2 * ratio, 0.2, 0.1]] * 4 for ratio in (1.0, 1.5)]
    measured = {f"mlp-{n}-copy-default": Measured(12, 4, [taken]) for n, taken in zip((1, 2), times, strict=True)}
    alone, _, head, shared, above = judged(measured, "cuda")
    assert "1 cases 1.0000" in alone
    assert "share the GPU" in head
    assert "1 cases 1.5000" in shared
    assert above.endswith("mlp-2-copy-default")
    assert len(list(judged(measured, "cpu"))) == 2


def test_conditions_of_a_cpu_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conditions("cpu", "held") == {"torch": torch.__version__, "allocator": "held"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    assert conditions("cuda", "held")["device"] == "NVIDIA X"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit, match="torch sees no GPU; use cpu"):
        conditions("cuda", "held")


def test_a_gpu_has_every_case() -> None:
    assert {case.model for case in cases("*-1-*", [1, 2])} == set(MODELS)
