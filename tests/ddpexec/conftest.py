"""Fixtures of the tests that need torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    from tests.ddpexec.ddp.pretended_gpu import Gpu, HostTime


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A gloo process group of this process alone, and one thread."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()  # what was there before, late in a long run most of what there is, is not looked at when the test ends
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    time.sleep(0.02)  # lets gloo's threads drop what callbacks held, a reference to the group perhaps
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.fixture
def host_time() -> Iterator[HostTime]:
    """A clock of the test's own in place of the host's: nothing else that runs on the machine is seen in it."""
    pytest.importorskip("torch")
    from tests.ddpexec.ddp.pretended_gpu import HostTime

    clock = HostTime()
    with mock.patch.multiple("time", perf_counter=clock.perf_counter, sleep=clock.sleep):
        yield clock


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """A pretended GPU in place of what ddpexec uses of `torch.cuda`."""
    pytest.importorskip("torch")
    from tests.ddpexec.ddp.pretended_gpu import Gpu

    with Gpu().installed() as installed:
        yield installed


@pytest.fixture
def cuda_is_cpu() -> Iterator[None]:
    """Make the tensors of a cuda device on the CPU."""
    torch = pytest.importorskip("torch")
    from tests.conformance.cuda_as_cpu import FACTORIES, on_cpu

    made = {name: on_cpu(getattr(torch, name)) for name in FACTORIES}
    with mock.patch.multiple(torch, Generator=mock.Mock(return_value=torch.Generator()), **made):
        yield


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command of ddpexec that is refused, with exit code 2, and return what it says on standard error."""
    from ddpexec.__main__ import main

    def said(*words: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        assert end.value.code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return said
