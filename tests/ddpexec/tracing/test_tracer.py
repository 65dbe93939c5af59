from __future__ import annotations

import json
import os
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import ddpexec
from ddpexec.errors import OptionError
from ddpexec.tracing import exchange
from ddpexec.tracing.summary import Watcher
from ddpexec.tuning.observing import Watch
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.explaining.explain import backend_of
from ddpsim.explaining.files import read_ranks
from ddpsim.trace.json import read_trace
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Iteration, Trace
from tests.ddpexec.groups import ranks
from tests.ddpexec.tracing import loops

STEPS, WARM_UP = 9, 3
UNIT_BYTES = (loops.WIDTH * loops.WIDTH + loops.WIDTH) * 4


def state() -> tuple[Any, ...]:
    """Return all that a trace stands before or hooks, of the whole process."""
    modules, optimizers = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    hooks = modules._global_forward_pre_hooks, optimizers._global_optimizer_pre_hooks
    counts = [len(each) for each in (*hooks, optimizers._global_optimizer_post_hooks)]
    return torch.autograd.backward, iterator.__next__, counts


def traced_and_not(rank: int, folder: str) -> None:
    """Train under each wrapper, traced or not: bit for bit the same, and nothing is left behind."""
    for kind in loops.KINDS:
        plain = loops.train(loops.wrapped(kind), STEPS, rank)
        model, before = loops.wrapped(kind), state()
        with ddpexec.trace(f"{folder}/{kind}", every=1, interval=4):
            seen = loops.train(model, STEPS, rank)
        hooks = [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model.modules()]
        fresh = [len(e._forward_pre_hooks) + len(e._forward_hooks) for e in loops.wrapped(kind).modules()]
        gradient_hooks = [len(each._post_accumulate_grad_hooks or ()) for each in model.parameters()]
        assert all(map(torch.equal, plain, seen)), kind
        assert (before, hooks) == (state(), fresh), kind
        assert max(gradient_hooks) == (1 if kind == "ddpexec" else 0)  # its own reducer's


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    ranks.run(2, traced_and_not, str(folder))
    return folder


@pytest.mark.parametrize("kind", loops.KINDS)
def test_a_trace_is_what_a_run_leaves_and_changes_nothing(traced: Path, kind: str) -> None:
    trace = read_trace(traced / kind)
    assert (trace.world_size, trace.ranks, trace.backend) == (2, [0, 1], "gloo")
    assert trace.provenance["implementation"] == kind
    assert trace.provenance["batch_size"] == loops.BATCH
    for rank in trace.ranks:
        assert [it.index for it in trace.of_rank(rank)] == list(range(WARM_UP, STEPS))
    for it in trace.iterations:
        _check_phases(it, kind)
    summary = summarise(trace)
    assert sum(summary.parts.values()) == pytest.approx(summary.iteration_s)
    names = {span.name for span in trace.spans}
    assert {"forward", "backward", "optimizer", "input"} <= names


def _check_phases(it: Iteration, kind: str) -> None:
    assert it.synced
    assert it.stepped
    assert 0 < it.forward_s + it.backward_compute_s + it.optimizer_s + (it.input_s or 0.0) < it.iteration_s
    assert sorted(each.parameter for each in it.gradients) == list(range(2 * loops.BLOCKS))
    for bucket in it.buckets:
        assert it.start_s <= bucket.launched_s <= bucket.started_s <= bucket.finished_s <= it.end_s
    if kind == "fsdp2":
        operations = [bucket.operation for bucket in it.buckets]
        assert operations.count(Operation.REDUCE_SCATTER) == loops.BLOCKS
        assert loops.BLOCKS <= operations.count(Operation.ALL_GATHER) <= 2 * loops.BLOCKS
        units = [(2 * block, 2 * block + 1) for block in range(loops.BLOCKS)]
        assert {bucket.parameters for bucket in it.buckets} == set(units)
        assert {bucket.size_bytes for bucket in it.buckets} == {UNIT_BYTES}
    else:
        held = [index for bucket in it.buckets for index in bucket.parameters]
        assert sorted(held) == list(range(2 * loops.BLOCKS))
        assert sum(bucket.size_bytes for bucket in it.buckets) == loops.BLOCKS * UNIT_BYTES


def test_both_ddps_have_the_same_buckets(traced: Path) -> None:
    plans: Any = [read_trace(traced / kind).provenance["plan"] for kind in ("torch", "ddpexec")]
    stock, ours = ([each["parameters"] for each in plan["buckets"]] for plan in plans)
    assert stock == ours
    assert len(ours) > 1


@pytest.mark.parametrize("rank", [0, 1])
def test_the_summary_has_a_line_an_interval(traced: Path, rank: int) -> None:
    lines = (traced / "torch" / f"summary-rank{rank}.jsonl").read_text().splitlines()
    words = [json.loads(line) for line in lines]
    assert [(each["first_step"], each["steps"]) for each in words] == [(0, 4), (4, 4)]
    assert [each["stamped"] for each in words] == [1, 4]
    assert words[0]["step_s"] > 0
    iterations = read_trace(traced / "torch").of_rank(rank)
    assert min(it.forward_s for it in iterations) <= words[1]["forward_s"] <= max(it.forward_s for it in iterations)
    assert [each.get("heard_ranks") for each in words] == ([2, 2] if rank == 0 else [None, None])


def sampled(rank: int, folder: str) -> None:
    model = loops.wrapped("torch")
    with ddpexec.trace(folder, every=2, warm_up=1, steps_per_file=2, files=2):
        loops.train(model, 30, rank, accumulate=2)


def test_every_how_manieth_step_is_stamped_and_the_oldest_files_go(tmp_path: Path) -> None:
    ranks.run(2, sampled, str(tmp_path))
    folders = sorted(each.name for each in tmp_path.iterdir() if each.is_dir())
    # Steps 1, 3, ..., 13 of two iterations each, two steps a file: the last file holds step 13.
    assert folders == ["steps-00000018"]
    assert [it.index for it in read_trace(tmp_path).of_rank(1)] == [26, 27]
    earlier = read_trace(tmp_path / folders[0])
    assert [it.index for it in earlier.of_rank(0)] == [18, 19, 22, 23]
    assert [(it.synced, it.stepped) for it in earlier.of_rank(0)] == [(False, False), (True, True)] * 2
    assert [len(it.buckets) > 0 for it in earlier.of_rank(0)] == [False, True] * 2


def one_traces(rank: int, folder: str) -> float:
    model, begin = loops.wrapped("torch"), time.monotonic()
    with ddpexec.trace(folder, every=1, interval=3) if rank == 1 else nullcontext():
        loops.train(model, STEPS, rank)
    return time.monotonic() - begin


def test_a_rank_that_is_traced_alone_waits_for_no_other(tmp_path: Path) -> None:
    assert max(ranks.run(2, one_traces, str(tmp_path))) < 15
    trace = read_trace(tmp_path)
    assert (trace.world_size, trace.ranks) == (2, [1])


def with_replicas(rank: int, folder: str) -> None:
    plain = loops.train(loops.wrapped("hsdp:2", 4), 3, rank)
    model = loops.wrapped("hsdp:2", 4)
    with ddpexec.trace(folder, every=1, warm_up=1):
        seen = loops.train(model, 3, rank)
    assert all(map(torch.equal, plain, seen))


def test_replicas_of_shards_reduce_among_themselves(tmp_path: Path) -> None:
    ranks.run(4, with_replicas, str(tmp_path))
    trace = read_trace(tmp_path)
    options: Any = trace.provenance["options"]
    assert options["scheme"] == "hsdp:2"
    for it in trace.iterations:
        reduced = [bucket for bucket in it.buckets if bucket.operation is Operation.ALLREDUCE]
        assert [bucket.size_bytes for bucket in reduced] == [UNIT_BYTES // 2] * loops.BLOCKS
        assert sorted(i for bucket in reduced for i in bucket.parameters) == list(range(2 * loops.BLOCKS))


LATE_S = 0.1


class SlowForward(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        time.sleep(LATE_S)
        return x


class SlowSamples(torch.utils.data.Dataset[Any]):
    def __init__(self, late: bool) -> None:
        self.late = late

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(LATE_S if self.late else 0)
        return torch.ones(loops.WIDTH)


def one_is_late(rank: int, folder: str, phase: str) -> None:
    late = rank == 1
    net = torch.nn.Sequential(torch.nn.Linear(loops.WIDTH, 4))
    if late and phase == "forward":
        net.append(SlowForward())
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    patient = mock.patch.multiple(exchange, PATIENCE_S=60.0, LEAVE_S=60.0)
    with patient, ddpexec.trace(folder, every=1, warm_up=1):
        for batch in torch.utils.data.DataLoader(SlowSamples(late and phase == "input")):
            model(batch).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("phase", ["forward", "input"])
def test_rank_0_hears_of_a_late_rank_and_says_what_follows(tmp_path: Path, phase: str) -> None:
    ranks.run(2, one_is_late, str(tmp_path), phase)
    first, second = (json.loads((tmp_path / f"summary-rank{rank}.jsonl").read_text()) for rank in range(2))
    assert second["own_s"] >= second[f"{phase}_s"] >= LATE_S
    assert first["events"] == Watcher().events(first, {1: second}, 0)
    assert second["events"] == []


def loses_rank_one(rank: int, folder: str) -> str:
    model = loops.wrapped("torch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop() -> None:
        with ddpexec.trace(folder, every=1, warm_up=0, interval=2):
            for number, batch in enumerate(loops.batches(STEPS, rank)):
                if rank == 1 and number == 5:
                    os._exit(7)
                model(batch).sum().backward()
                optimizer.step()

    with pytest.raises(RuntimeError) as caught:
        loop()
    return str(caught.value)


def test_a_lost_rank_ends_the_loop_with_its_own_error_and_a_trace(tmp_path: Path) -> None:
    first, second = ranks.outcomes(2, loses_rank_one, str(tmp_path), timeout_s=40)
    assert second.exit_code == 7
    assert first.error is None
    assert "onnection" in first.value or "eer" in first.value
    assert [it.index for it in read_trace(tmp_path).of_rank(0)] == [0, 1, 2, 3, 4]


def test_a_module_alone_is_traced_too(tmp_path: Path) -> None:
    model = torch.nn.Linear(loops.WIDTH, 2)
    with ddpexec.trace(tmp_path, warm_up=1, every=3):
        loops.train(model, 8, 0)
    trace = read_trace(tmp_path)
    assert (trace.world_size, [it.index for it in trace.iterations]) == (1, [1, 4, 7])
    assert trace.provenance["implementation"] == "none"


def test_evaluation_and_forwards_without_gradients_are_no_iterations(tmp_path: Path) -> None:
    model = torch.nn.Linear(loops.WIDTH, 2)
    with ddpexec.trace(tmp_path, every=1, warm_up=0):
        for batch in loops.batches(3, 0):
            with torch.no_grad():
                model(batch)
            model.eval()
            model(batch)
            model.train()
            model(batch).sum().backward()
    assert [it.index for it in read_trace(tmp_path).iterations] == [0, 1, 2]


def test_a_trace_without_training_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no module was trained inside it"), ddpexec.trace(tmp_path):
        pass


def test_what_fails_while_training_goes_on_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(loops.WIDTH, 2)

    def full(trace: Trace, rank: int, directory: str) -> None:
        raise InputError("no space left on device", place=str(directory))

    monkeypatch.setattr("ddpexec.tracing.session.write_rank", full)
    before = state()
    stopped = pytest.warns(UserWarning, match=r"trace stopped, and the training goes on: .*no space left")
    with stopped, ddpexec.trace(tmp_path, every=1, warm_up=0, steps_per_file=1):
        loops.train(model, 4, 0)
    assert state() == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every": 0}, "`every=0` is not a number of steps from 1 on"),
        ({"warm_up": -1}, "`warm_up=-1` is not a number of steps from 0 on"),
        ({"files": True}, "`files=True` is not a number of files from 1 on"),
        ({"steps": 3}, "no setting 'steps'"),
    ],
)
def test_bad_settings_are_refused_before_training(tmp_path: Path, settings: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ddpexec.trace(tmp_path, **settings)


def test_a_folder_that_cannot_be_written_and_a_second_trace_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError), ddpexec.trace(tmp_path / "file"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        second = pytest.raises(OptionError, match="is being traced into")
        with ddpexec.trace(tmp_path), second, ddpexec.trace(tmp_path / "other"):
            pass


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("outside", [True, False])
def test_what_is_compiled_is_the_same_traced_or_not(tmp_path: Path, outside: bool) -> None:
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    def compiled(traced: bool) -> dict[str, dict[str, int]]:
        reset()
        counters.clear()
        net = torch.nn.Sequential(torch.nn.Linear(loops.WIDTH, 4), torch.nn.ReLU())
        wrap = torch.nn.parallel.DistributedDataParallel
        model = torch.compile(wrap(net), backend="eager") if outside else wrap(torch.compile(net, backend="eager"))
        with warnings.catch_warnings(), ddpexec.trace(tmp_path, every=2, warm_up=1) if traced else nullcontext():
            warnings.simplefilter("ignore")  # torch warns of global hooks beside what is compiled
            loops.train(model, 6, 0)
        return {kind: dict(counters[kind]) for kind in ("frames", "stats")}

    compiled(False)  # what torch finds that it cannot compile it does not try again
    assert compiled(False) == compiled(True)
    trace = read_trace(tmp_path)
    assert [it.index for it in trace.iterations] == [1, 3, 5]
    assert all(it.forward_s > 0 and len(it.gradients) == 2 and len(it.buckets) == 1 for it in trace.iterations)


def of_mpi(rank: int, folder: str) -> str:
    """Trace over a group that torch knows by the name of ours over MPI, and stamp it as a tuner does."""
    model = loops.wrapped("torch")
    with mock.patch.object(dist, "get_backend", return_value="mpi4py"):
        with ddpexec.trace(folder, every=1, interval=4):
            loops.train(model, STEPS, rank)
        return Watch(model).job.backend


def test_a_trace_and_a_tuner_name_the_backend_of_mpi(tmp_path: Path) -> None:
    assert ranks.run(2, of_mpi, str(tmp_path)) == ["mpi", "mpi"]
    assert read_trace(tmp_path).backend == "mpi"
    lead = read_ranks(tmp_path, None, None).ranks[0]
    assert (lead.backend, lead.device, backend_of(lead)) == ("mpi", "cpu", "mpi")


def traced_and_tuned(rank: int, folder: str, first: str) -> None:
    """Trace and tune at once: weights are alike, no hook stays on gradients, and the tuner says why it stopped."""
    plain = loops.train(loops.wrapped("torch"), 20, rank)
    model = loops.wrapped("torch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        with (
            nullcontext() if first == "trace" else ddpexec.tuned(model, optimizer),
            ddpexec.trace(folder, every=1),
            ddpexec.tuned(model, optimizer) if first == "trace" else nullcontext(),
        ):
            for batch in loops.batches(20, rank):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        (said,) = (str(each.message) for each in caught if "ddpexec." in str(each.message))
    assert said.startswith("ddpexec.tuned stopped, and the training goes on: OptionError: ")
    assert "stamped by another observer" in said
    assert all(map(torch.equal, plain, model.parameters()))
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


@pytest.mark.parametrize("first", ["trace", "tuned"])
def test_a_trace_and_a_tuner_at_once_are_one_of_them_and_the_other_says_why(first: str, tmp_path: Path) -> None:
    ranks.run(2, traced_and_tuned, str(tmp_path), first)
    assert len(read_trace(tmp_path).of_rank(0)) == 20 - WARM_UP
