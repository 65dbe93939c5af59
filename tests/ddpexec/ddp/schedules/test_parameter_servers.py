"""Parameter servers carried out: weights of one process, no update lost, and an end when one rank ends."""

from __future__ import annotations

import functools
import os
import weakref
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch

from ddpexec.ddp.parameter_servers import ServerStream
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import FinishedWork
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from tests.ddpexec.ddp.schedules.training import (
    OPTIMIZERS,
    STEPS,
    alone,
    apart,
    batch,
    loss_of,
    model_of,
    train,
    weights_of,
    wrapped,
)
from tests.ddpexec.groups import ranks
from tests.forked import command


def trained(rank: int, scheme: str, servers: int, optimizer: str, steps: int = STEPS) -> tuple[Any, Any]:
    """Return the weights of a training rank, or what a server has done."""
    workers = torch.distributed.get_world_size() - servers
    made = wrapped(rank, scheme, optimizer)
    if made.serves:
        return None, made.serve()
    train(made, rank, steps=steps, workers=workers)
    made.end()
    return weights_of(made.module), len(made.schedule) // 2


@ranks.on(3)
def test_without_overlap_a_gradient_is_taken_once(rank: int) -> None:
    with mock.patch(f"{__name__}.wrapped", functools.partial(wrapped, overlap=False)):
        runs = [
            trained(rank, f"parameter-server:servers=1{option}", 1, "sgd", steps=3)[0] for option in ("", ",tictac") * 5
        ]
    found = [apart(weights, alone("sgd", 2)[2]) for weights in runs if weights is not None]
    assert max(found, default=0) < 1e-10, found


def on_nodes(rank: int) -> list[tuple[str, float, int]]:
    """Return what a rank of two nodes of two did, of which the second has one server, and two."""
    found = []
    for each in (1, 2):
        with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": "2"}):
            made = wrapped(rank, f"parameter-server:nodes=1,each={each}", "sgd")
        if made.serves:
            served = made.serve()
            found.append(("server" if served.updates else "idle", 0.0, served.updates))
            continue
        weights = train(made, rank, workers=2)
        made.end()
        found.append(("trainer", apart(weights, alone("sgd", 2)[-1]), len(made.schedule) // 2))
    return found


def test_servers_have_nodes_of_their_own_and_other_ranks_there_idle() -> None:
    told = ranks.run(4, on_nodes)
    roles = [[role for role, *_ in found] for found in told]
    assert roles == [["trainer", "trainer"], ["trainer", "trainer"], ["server", "server"], ["idle", "server"]]
    assert max(far for found in told for _, far, _ in found) < 1e-10
    buckets = told[0][0][2]
    assert [updates for _, _, updates in told[2]] == [STEPS * buckets] * 2


def beside(rank: int) -> list[tuple[float, int, int, int]]:
    """Return how far a rank of two nodes of two ends from one process, its server's updates, buckets, bytes sent."""
    found = []
    for optimizer in OPTIMIZERS:
        for options in ("beside=1", "beside=2", "beside=1,tictac"):
            with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": "2"}):
                made = wrapped(rank, f"parameter-server:{options}", optimizer)
            assert not made.serves
            weights = train(made, rank)
            served = made.end()
            sent = made.reducer.messages.pushed_bytes
            far = apart(weights, alone(optimizer, 4)[-1])
            found.append((far, served.updates if served else 0, len(made.schedule) // 2, sent))
    return found


def test_servers_beside_trainers_end_with_the_weights_of_one_process() -> None:
    told = ranks.run(4, beside, timeout_s=110)
    assert max(far for found in told for far, *_ in found) < 1e-10
    elements = sum(parameter.numel() for parameter in model_of().parameters())
    for rank, found in enumerate(told):
        for (_, updates, buckets, sent), hosts in zip(found, [(0, 2), (0, 1, 2, 3), (0, 2)] * 2, strict=True):
            assert updates == (STEPS * buckets if rank in hosts else 0)
            # Parts are equal to a row of each bucket; what goes to the server in the same process is not sent.
            others = len(hosts) - (rank in hosts)
            assert sent == pytest.approx(STEPS * elements * 8 * others / len(hosts), abs=STEPS * buckets * 8)


def asynchronous_beside(rank: int) -> tuple[int, int, int, int]:
    slowly = {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01)}
    with mock.patch.dict(OPTIMIZERS, slowly):
        made = wrapped(rank, "parameter-server:beside=1,async")
    steps = 6 + 3 * rank
    train(made, rank, steps=steps)
    served = made.end()
    return steps, len(made.schedule) // 2, served.updates, sum(served.staleness.values())


def test_asynchronous_servers_beside_trainers_lose_no_update() -> None:
    found = ranks.run(3, asynchronous_beside)
    steps = sum(each for each, *_ in found)
    for _, buckets, updates, counted in found:
        assert (updates, counted) == (steps * buckets, (steps - 3) * buckets)


@ranks.on(2)
def test_servers_beside_trainers_go_on_where_they_were_saved(rank: int) -> None:
    first = wrapped(rank, "parameter-server:beside=1")
    train(first, rank, steps=STEPS // 2)
    first.end()
    weights, kept = first.module.state_dict(), first.scheme_state_dict()
    second = wrapped(rank, "parameter-server:beside=1")
    second.module.load_state_dict(weights)
    second.load_scheme_state_dict(kept)
    found = train(second, rank, STEPS // 2, STEPS - STEPS // 2)
    second.end()
    assert apart(found, alone("sgd", 2)[-1]) < 1e-10


@pytest.mark.parametrize(("world", "servers"), [(3, 1), (4, 2), (2, 1)])
@ranks.on("world", timeout_s=110)
def test_synchronous_steps_end_with_the_weights_of_one_process(rank: int, servers: int) -> None:
    workers, found = torch.distributed.get_world_size() - servers, {}
    for optimizer in OPTIMIZERS:
        expected = alone(optimizer, workers)[-1]
        for option in ("", ",tictac"):
            weights, _ = trained(rank, f"parameter-server:servers={servers}{option}", servers, optimizer)
            found[f"{optimizer}{option}"] = 0.0 if weights is None else apart(weights, expected)
    assert len(found) == 4
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@ranks.on(2)
def test_one_asynchronous_rank_trains_as_one_process(rank: int) -> None:
    weights, served = trained(rank, "parameter-server:async", 1, "sgd")
    if weights is None:
        assert set(served.staleness) == {0}
    else:
        assert apart(weights, alone("sgd", 1)[-1]) < 1e-10


def several_asynchronous(rank: int) -> tuple[Any, Any, float]:
    # Three ranks' steps with one rank's learning rate each: the tests' own, with momentum, diverge when they are stale.
    slowly = {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01)}
    with mock.patch.dict(OPTIMIZERS, slowly):
        weights, served = trained(rank, "parameter-server:async,servers=1", 1, "sgd", steps=STEPS + 5 * rank)
    if weights is None:
        return weights, served, 0.0
    losses = []
    for values in (weights_of(model_of()), weights):
        model = model_of()
        torch.nn.utils.vector_to_parameters(torch.cat([v.flatten() for v in values]), model.parameters())
        losses.append(sum(float(loss_of(model, *batch(number, 3))) for number in range(STEPS)))
    return weights, served, losses[1] / losses[0]


def test_asynchronous_servers_lose_no_update_and_count_staleness() -> None:
    *workers, (_, served, _) = ranks.run(4, several_asynchronous)
    buckets = workers[0][1]
    steps = sum(STEPS + 5 * rank for rank in range(3))
    assert served.updates == steps * buckets
    # Of each rank's first gradient nothing was pulled before.
    assert sum(served.staleness.values()) == (steps - 3) * buckets
    assert all(learned < 1 for *_, learned in workers)


def ended_early(rank: int) -> str:
    try:
        trained(rank, "parameter-server", 1, "sgd", steps=2 + rank)
    except ExecutionError as error:
        return str(error)
    return ""


def ended_early_beside(rank: int) -> str:
    made = wrapped(rank, "parameter-server:beside=1")
    try:
        train(made, rank, steps=2 + rank)
        made.end()
    except ExecutionError as error:
        return str(error)
    return ""


@pytest.mark.needs("wait")
def test_of_servers_beside_trainers_a_rank_that_ends_before_another_is_named() -> None:
    first, second = ranks.outcomes(2, ended_early_beside, group_timeout_s=10)
    assert "rank 0 has ended and rank 1 goes on" in first.value
    assert "has ended" in second.value  # said by its own server, or of the process that has left


def test_a_rank_that_ends_before_another_is_named() -> None:
    *_, server = ranks.outcomes(3, ended_early, group_timeout_s=10)
    assert "rank 0 has ended and rank 1 goes on" in server.value


def each_sent(rank: int) -> list[str]:
    """Return what is said of micro-batches that send each their gradients: announced, and not."""
    said = []
    with pytest.raises(PlanError) as announced:
        wrapped(rank, "parameter-server", accumulate=2)
    said.append(str(announced.value))
    made = wrapped(rank, "parameter-server")
    if made.serves:
        made.serve()
        return said
    loss_of(made, *batch(0, 1)).backward()
    with pytest.raises(ExecutionError) as noticed:
        made(batch(1, 1)[0])
    made.end()
    return [*said, str(noticed.value)]


def test_servers_take_one_push_a_step() -> None:
    trainer, server = ranks.run(2, each_sent)
    assert trainer[0] == server[0]
    assert "servers step as soon as gradients are pushed, of 2 micro-batches a step" in trainer[0]
    assert "were sent, and no step was taken" in trainer[1]


def test_a_run_on_one_push_a_step_is_predicted_and_others_refused(tmp_path: Path) -> None:
    words = ["ddpsim", "predict", "--workload", "resnet50", "--topology", "loopback", "--gpus-per-node", "3", "--json"]
    for scheme in ("parameter-server", "parallax:sparse=fc"):
        asked = [*words, "--backend", "gloo", "--scheme", scheme, "--accumulate", "2"]
        each = command([*asked, "--sync", "every"], tmp_path, {})
        assert (each.returncode, "of 2 micro-batches a step" in each.stderr) == (2, True)
        assert command([*asked, "--sync", "last"], tmp_path, {}).returncode == 0


@ranks.on(2)
def test_servers_without_clients_are_refused_on_every_rank(rank: int) -> None:
    with pytest.raises(ExecutionError, match="learn=0"):
        wrapped(rank, "parameter-server", learn=2)
    with pytest.raises(ExecutionError, match="DeepSpeed trains by it"):
        wrapped(rank, "zero3")
    with pytest.raises(ExecutionError, match="learn=0"):
        wrapped(rank, "parameter-server:beside=1", learn=2)
    with pytest.raises(PlanError, match="3 servers on a node of 1 rank"):
        wrapped(rank, "parameter-server:beside=3")
    with pytest.raises(PlanError, match="without clients"):
        wrapped(rank, "parameter-server:servers=2")
    made = wrapped(rank, "parameter-server")
    if made.serves:
        made.serve()
    else:
        with pytest.raises(ExecutionError, match="clipped"):
            made.clip_grad_norm_(1.0)
        made.end()


class _Group:
    """Sends nothing, and remembers the works that it returned as long as somebody holds them."""

    timeout = None

    def __init__(self) -> None:
        self.works: list[weakref.ref[FinishedWork]] = []

    def rank(self) -> int:
        return 0

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> FinishedWork:
        work = FinishedWork()
        self.works.append(weakref.ref(work))
        return work

    recv = send


@pytest.mark.parametrize("operation", [Operation.REDUCE, Operation.BROADCAST])
def test_a_finished_work_is_dropped_when_the_next_of_its_message_begins(operation: Operation) -> None:
    group = _Group()
    stream = ServerStream(cast("Any", group), [2, 3], messages=2)
    stream.launch(operation, torch.zeros(4), ()).wait()
    messages = [work for work in group.works if work() is not None][-2:]
    stream.launch(operation, torch.zeros(4), ()).wait()
    assert all(work() is not None for work in messages)
    stream.launch(operation, torch.zeros(4), ()).wait()
    assert all(work() is None for work in messages)
