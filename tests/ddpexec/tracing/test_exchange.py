from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from ddpexec.tracing import exchange
from ddpexec.tracing.exchange import Exchange, find_own_address, make_token, offset_to, serve_clock


@contextmanager
def joined(connection: Callable[[], Any]) -> Iterator[None]:
    """Pretend that there is a process group, whose store `connection` returns."""
    group = mock.patch.object(exchange.dist, "is_initialized", return_value=True)
    with group, mock.patch.object(exchange, "connection", connection):
        yield


def test_a_clock_of_this_machine_is_not_off() -> None:
    token = make_token()
    port, _ = serve_clock("127.0.0.1", token)
    begin_s = time.perf_counter()
    offset_s = offset_to("127.0.0.1", port, token)
    assert abs(offset_s) < (time.perf_counter() - begin_s) / 2, "more than half of what an answer takes"


def test_a_clock_is_told_to_nobody_without_the_token() -> None:
    port, _ = serve_clock("127.0.0.1", make_token())
    with pytest.raises(OSError, match=r"closed|reset"):
        offset_to("127.0.0.1", port, make_token())
    with socket.create_connection(("127.0.0.1", port), timeout=5) as caller:
        caller.sendall(b"?" * 40)
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(8) == b""


def test_a_clock_listens_on_the_address_of_the_group_alone() -> None:
    port, _ = serve_clock("127.0.0.2", make_token())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_the_groups_address_is_the_named_interfaces_else_the_way_to_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.7")
    assert find_own_address() == "127.0.0.1" or find_own_address() == "127.0.0.7"
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert find_own_address() == "127.0.0.1"


def test_a_master_that_is_local_to_itself_listens_on_the_way_back_to_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose name is 127.0.1.1 in its own /etc/hosts: other machines cannot come there."""
    store = torch.distributed.HashStore()
    store.set("ddpexec/trace/caller", "192.0.2.7")
    asked: list[str | None] = []
    served: list[str] = []

    def address(peer: str | None = None) -> str:
        asked.append(peer)
        return "127.0.1.1" if peer is None else "192.0.2.1"

    monkeypatch.setattr(exchange, "find_own_address", address)
    monkeypatch.setattr(exchange, "serve_clock", lambda where, token: served.append(where) or (4242, lambda: None))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with joined(lambda: store):
        alone = Exchange(0, 2, lambda *words: None)
        alone.align()
        told = json.loads(store.get("ddpexec/trace/clock"))
        alone.close()
    assert asked == [None, "192.0.2.7"]
    assert served == ["192.0.2.1"]
    assert (told["address"], told["port"], len(told["token"])) == ("192.0.2.1", 4242, 32)


def test_a_clock_that_is_stopped_answers_no_more_and_leaves_no_thread() -> None:
    port, stop = serve_clock("127.0.0.1", make_token())
    (thread,) = (each for each in threading.enumerate() if each.name == f"ddpexec.trace clock {port}")
    stop()
    thread.join(5)
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def pair(machines: tuple[int, int], store: Any) -> list[tuple[float | None, list[Any]]]:
    """Return the offset that each of two ranks found, and what it heard of one interval."""
    found: list[Any] = [None, None]

    def rank(number: int) -> None:
        heard: list[Any] = []
        ours = Exchange(number, 2, lambda *words: heard.append(words))
        offset_s = ours.align()
        ours.tell(0, {"step_s": number})
        ours.close()
        found[number] = offset_s, heard

    places = [(each, 1) for each in machines]
    with joined(lambda: store), mock.patch.object(exchange, "find_place", side_effect=places):
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each rank speak while the other still listens, however slow the machine."""
    for wait in ("ALIGN_S", "PATIENCE_S", "LEAVE_S"):
        monkeypatch.setattr(exchange, wait, 60.0)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # without it rank 0 waits for rank 1 to say where it calls from


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("machines", [(1, 1), (1, 2)])
def test_ranks_find_the_first_ones_clock_and_tell_it_their_words(
    machines: tuple[int, int],
) -> None:
    begin_s = time.perf_counter()
    (first, heard), (second, own) = pair(machines, torch.distributed.HashStore())
    took_s = time.perf_counter() - begin_s
    assert first == 0.0
    assert second is not None
    assert second == 0.0 if machines == (1, 1) else 0.0 < abs(second) < took_s / 2
    assert heard == [(0, {"step_s": 0}, {1: {"step_s": 1}})]
    assert own == [(0, {"step_s": 1}, {})]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("alone", [0, 1])
def test_ranks_of_which_one_was_traced_alone_before_hear_each_other(alone: int) -> None:
    store = torch.distributed.HashStore()
    with joined(lambda: store), mock.patch.object(exchange, "ALIGN_S", 0.1):
        before = Exchange(alone, 2, lambda *words: None)
        before.align()
        before.close()
    for _ in range(2):
        (_, heard), _ = pair((1, 1), store)
        assert heard == [(0, {"step_s": 0}, {1: {"step_s": 1}})]


def test_who_does_not_speak_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.1)
    heard: list[Any] = []
    with joined(torch.distributed.HashStore):
        alone = Exchange(0, 3, lambda *words: heard.append(words))
        alone.tell(0, {})
        alone.close()
    assert heard == [(0, {}, {})]
    assert alone.missing == {1, 2}


def test_a_trace_that_could_not_be_told_of_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "make_token", mock.Mock(side_effect=OSError("no random bytes")))
    before = set(threading.enumerate())
    with joined(torch.distributed.HashStore):
        alone = Exchange(0, 2, lambda *words: None)
        alone.align()
        alone.close()
    assert set(threading.enumerate()) <= before


def test_a_store_that_is_gone_leaves_this_ranks_own_words() -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Connection reset by peer")

    heard: list[Any] = []
    with joined(Gone):
        alone = Exchange(1, 2, lambda *words: heard.append(words))
        assert alone.align() is None
        alone.tell(0, {"step_s": 1})
        alone.close()
    assert heard == [(0, {"step_s": 1}, {})]
