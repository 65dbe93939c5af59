"""Parameters that take no gradient: in files, in memory, and in what is sent."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpexec.capturing.capture import CaptureSettings, capture_step
from ddpexec.capturing.estimate import estimate_step
from ddpsim import Options, load_topology, predict
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import in_registration_order
from ddpsim.chakra.importing import import_trace as import_chakra
from ddpsim.chakra.writing import write_traces
from ddpsim.common.errors import WorkloadError
from ddpsim.common.operation import Operation
from ddpsim.prediction.first import messages_of
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from ddpsim.simulation.jobs.stages import parts_of
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload, save_workload, workload_document, workload_from

WIDTH, WORDS, LAYERS = 64, 256, 4


class Layer(nn.Module):
    """A transformer's layer, with adapters beside its queries where asked."""

    def __init__(self, adapted: bool, dtype: torch.dtype) -> None:
        super().__init__()
        linear = functools.partial(nn.Linear, bias=False)
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)
        if adapted:
            self.requires_grad_(False).to(dtype)
            self.lora_a, self.lora_b = linear(WIDTH, 2), linear(2, WIDTH)
        self.adapted = adapted

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        if self.adapted:
            q = q + self.lora_b(self.lora_a(y.float())).to(q.dtype)
        q, k, v = (each.view(*x.shape[:2], 4, WIDTH // 4).transpose(1, 2) for each in (q, k, v))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        found: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return found


class Model(nn.Module):
    """A transformer of which `cut` is frozen."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        dtype = torch.bfloat16 if cut == "bf16 base" else torch.float32
        adapted = cut in ("adapters", "bf16 base")
        self.words, self.norm = nn.Embedding(WORDS, WIDTH, dtype=dtype), nn.LayerNorm(WIDTH, dtype=dtype)
        self.h = nn.ModuleList(Layer(adapted, dtype) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False, dtype=dtype)
        if cut == "tied":
            self.head.weight = self.words.weight
        whole = ["words", "norm", "head"]
        frozen = {
            "embedding": ["words"], "tied": ["words"], "lower": ["words", "h.0", "h.1"], "middle": ["h.1", "h.2"],
            "upper": ["h.2", "h.3"], "adapters": whole, "bf16 base": whole,
        }  # fmt: skip
        for name in frozen.get(cut, []):
            self.get_submodule(name).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.h:
            x = layer(x)
        found: Tensor = self.head(self.norm(x))
        return found


CUTS = ["adapters", "bf16 base", "embedding", "tied", "lower", "middle", "upper"]


def step_of(cut: str) -> tuple[nn.Module, Callable[[], object]]:
    model, tokens = Model(cut), torch.zeros(8, 32, dtype=torch.long)
    optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)

    def step() -> None:
        model(tokens).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def adapters_step() -> tuple[nn.Module, Callable[[], object]]:
    return step_of("adapters")


@functools.cache
def made(cut: str) -> Workload:
    return estimate_step(lambda: step_of(cut), "A100")


def predicted(cut: str, **options: Any) -> Prediction:
    return predict(made(cut), load_topology("dgx-a100"), options=Options(**options), band=False)


def sent(cut: str, **options: Any) -> Counter[Operation]:
    found: Counter[Operation] = Counter()
    for message in predicted(cut, **options).summary.buckets:
        found[Operation(message.operation)] += message.size_bytes
    return found


@pytest.mark.parametrize("cut", CUTS)
def test_the_whole_model_is_registered_held_and_broadcast(cut: str) -> None:
    model, workload = Model(cut), made(cut)
    whole = [(name, tuple(each.shape), str(each.dtype)[6:]) for name, each in model.named_parameters()]
    registered = [each for _, each in in_registration_order(workload.all_parameters)]
    assert sorted((each.name, each.shape, each.dtype) for each in registered) == sorted(whole)
    # Modules in order, each one's own parameters, as DDP visits them.
    ids = {id(each): name for name, each in model.named_parameters()}
    visited = [ids[id(each)] for module in model.modules() for each in module.parameters(recurse=False)]
    assert [each.name for each in registered] == list(dict.fromkeys(visited))
    size = sum(each.nbytes for each in model.parameters())
    trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    memory = predicted(cut).memory
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (size, trained, 2 * trained)
    assert sum(each.size_bytes for each in messages_of(workload, 8) if each.tensors) == size
    assert sent(cut) == {Operation.ALLREDUCE: trained}


def filled_up(parameter: Parameter, ranks: int) -> int:
    """Return the bytes of a parameter whose rows torch fills up to a multiple of the ranks."""
    rows = parameter.shape[0]
    return -(-rows // ranks) * ranks * (parameter.size_bytes // rows)


@pytest.mark.parametrize("cut", CUTS)
def test_sharded_schemes_gather_all_and_reduce_what_is_trained(cut: str) -> None:
    size = sum(each.size_bytes for each in made(cut).all_parameters)
    trained = made(cut).gradient_bytes
    for scheme, ranks in (("fsdp2:noreshard", 8), ("hsdp:4,noreshard", 4)):
        found = sent(cut, scheme=scheme)
        assert found[Operation.ALL_GATHER] == sum(filled_up(each, ranks) for each in made(cut).all_parameters)
        assert found[Operation.REDUCE_SCATTER] == sum(filled_up(each, ranks) for each in made(cut).parameters)
    for scheme, ranks in (("fsdp2", 8), ("hsdp:4", 4), ("zero3:param_persistence_threshold=1", 8)):
        found, memory = predicted(cut, scheme=scheme), predicted(cut, scheme=scheme).memory
        assert memory.parameters_bytes == -(-size // ranks)
        assert memory.gradients_bytes == -(-trained // ranks)
        once = {index for each in found.summary.buckets if each.operation == "all_gather" for index in each.parameters}
        assert once == set(range(len(made(cut).all_parameters)))
    for scheme in ("zero1", "zero2"):
        assert predicted(cut, scheme=scheme).memory.parameters_bytes == size
        assert set(sent(cut, scheme=scheme).values()) == {trained}


@pytest.mark.parametrize("cut", CUTS)
def test_what_a_rank_has_of_a_cut_model_is_that_of_one_without_a_frozen_part(cut: str) -> None:
    whole = predicted(cut, tensor_parallel=2).memory.parameters_bytes
    if cut not in ("adapters", "bf16 base", "tied"):
        assert whole == predicted("", tensor_parallel=2).memory.parameters_bytes
    size = sum(each.size_bytes for each in made(cut).all_parameters)
    assert size / 2 < whole < 0.6 * size
    parts = list(parts_of(made(cut), parse_pipeline("1f1b:2", "pipeline")))
    held = Counter(each.name for part in parts for each in part.workload.all_parameters)
    assert held == Counter(each.name for each in made(cut).all_parameters)
    for part in parts:
        names = [each.name for _, each in in_registration_order(part.workload.all_parameters)]
        assert names == [each.name for _, each in in_registration_order(made(cut).all_parameters) if each.name in names]


@pytest.mark.parametrize("cut", CUTS)
def test_a_frozen_part_makes_no_step_slower(cut: str) -> None:
    # Stages are cut at layers that are trained, so that a pipeline's may be less even.
    for scheme in ("ddp", "fsdp2", "zero3", "dataparallel"):
        if cut not in ("adapters", "bf16 base", "tied"):
            assert predicted(cut, scheme=scheme).iteration_s <= 1.02 * predicted("", scheme=scheme).iteration_s
    assert predicted(cut, pipeline=parse_pipeline("1f1b:2", "pipeline")).iteration_s > 0


def test_files_keep_them_under_a_key_of_their_own(tmp_path: Any) -> None:
    workload, path = made("adapters"), tmp_path / "w.json"
    save_workload(workload, path)
    assert load_workload(path) == workload
    document = json.loads(path.read_text())
    assert "frozen" not in workload_document(made(""))
    assert {each["name"] for each in document["frozen"]} == {each.name for each in workload.frozen}
    old = {key: value for key, value in document.items() if key not in ("frozen", "operators", "forward_use_s")}
    assert workload_from(old, "old").parameters == workload.parameters
    assert workload_from(old, "old").frozen == ()
    document["frozen"][0]["before"] = 1000
    with pytest.raises(WorkloadError, match=r"frozen\.0\.before"):
        workload_from(document, "w.json")


def test_another_gpu_keeps_them(tmp_path: Any) -> None:
    path = tmp_path / "w.json"
    save_workload(made("bf16 base"), path)
    carried = load_workload(f"{path}@H100")
    assert carried.frozen == made("bf16 base").frozen
    assert carried.parameters == made("bf16 base").parameters
    assert {each.dtype for each in carried.parameters} == {"float32"}
    assert carried.precision == "bf16"


def test_a_capture_sees_when_forward_needs_them() -> None:
    found = capture_step(f"{__name__}:adapters_step", CaptureSettings(iterations=2, warm_up=1))
    assert [each.name for each in found.frozen] == [each.name for each in made("adapters").frozen]
    assert found.forward_use_s is not None
    use = dict(zip((each.name for each in found.all_parameters), found.forward_use_s.host_s, strict=True))
    assert use["words.weight"] <= use["h.0.q.weight"] <= use["h.1.q.weight"] <= use["head.weight"]
    # A file that has the times of the others alone takes those next to them.
    count = len(found.parameters)
    others = replace(
        found.forward_use_s, host_s=found.forward_use_s.host_s[:count], device_s=found.forward_use_s.device_s[:count]
    )
    assert len(replace(found, forward_use_s=others).forward_shares().host_s) == len(found.all_parameters)


def test_a_chakra_trace_brings_them_back(tmp_path: Any) -> None:
    before = predicted("middle", scheme="fsdp2")
    read = import_chakra(write_traces(before.run.under(before.options), tmp_path, "step")[0]).workload
    assert [(each.name, each.shape, each.before) for each in read.frozen] == [
        (each.name, each.shape, each.before) for each in made("middle").frozen
    ]
    again = predict(read, load_topology("dgx-a100"), options=Options(scheme="fsdp2"), band=False)
    assert again.iteration_s == pytest.approx(before.iteration_s, rel=0.05)  # kernels of a microsecond, in whole ones
