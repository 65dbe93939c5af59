"""What a capture records of a step's data loader, and predictions from it."""

from __future__ import annotations

import sys
import time
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ddpexec.capturing.capture import CaptureSettings, capture_step, find_loading
from ddpexec.capturing.own_step import OwnStep
from ddpsim.common.errors import InputError
from ddpsim.simulation.engine import simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.files import workload_document, workload_from

SAMPLE_S = 0.004
FEATURES, BATCH = 6, 5


class Slow(Dataset):
    """Samples of six floats and a label, each of which takes four milliseconds to make."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return {"x": torch.full((FEATURES,), float(index)), "y": torch.tensor(index)}


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.zeros(FEATURES) for _ in range(3))


class Step:
    """A step that takes its batches from a loader."""

    def __init__(self, loader):
        self.loader, self.module = loader, nn.Linear(FEATURES, 1)
        self.batches = iter(loader) if isinstance(loader, DataLoader) else None

    def __call__(self):
        self.module(next(self.batches)["x"]).sum().backward()


def loading(loader):
    step = Step(loader)
    return find_loading(OwnStep("mine:make", step.module, step))


def test_one_process_is_timed_whatever_the_number_of_workers():
    for workers in (0, 2):
        found = loading(DataLoader(Slow(), batch_size=BATCH, num_workers=workers))
        assert found.load_s >= BATCH * SAMPLE_S
        assert (found.workers, found.copy_bytes, found.pinned) == (workers, BATCH * (4 * FEATURES + 8), False)


def test_streams_and_samples_one_by_one_are_batches_too():
    assert loading(DataLoader(Stream(), batch_size=2)).copy_bytes == 2 * 4 * FEATURES
    assert loading(DataLoader(Slow(), batch_size=None)).copy_bytes == 4 * FEATURES + 8


def test_a_loader_that_is_none_is_refused():
    with pytest.raises(InputError, match="`loader` is a list"):
        loading([1, 2])


def test_a_captured_step_has_it_in_its_file_and_a_prediction_takes_it(monkeypatch):
    module = types.ModuleType("loads_slowly")
    module.make = lambda: ((step := Step(DataLoader(Slow(), batch_size=BATCH))).module, step)
    monkeypatch.setitem(sys.modules, "loads_slowly", module)
    captured = capture_step("loads_slowly:make", CaptureSettings(iterations=2, warm_up=1))
    assert workload_from(workload_document(captured), "file") == captured
    load_s = captured.input_stage.load_s
    waits = [it.input_s for it in simulate_local(captured, Options(input_stage="recorded"))]
    assert waits == pytest.approx([load_s] * len(waits))
    assert [it.input_s for it in simulate_local(captured, Options(iterations=1))] == [None]
