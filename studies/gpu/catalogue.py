"""The steps of `make gpu`, in the order in which they run, for a device: a GPU's, or their counterparts on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpexec.capturing.models import ESTIMATED
from ddpsim.workload.files import load_workload
from studies.gpu.steps import Step, document

PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32",)}
AMPERE = 8
"""Compute capability from which a GPU has tf32 and bf16."""
CPU_BATCH = {"mlp": 16}
ALGORITHMS, PROTOCOLS = ("Ring", "Tree"), ("LL", "LL128", "Simple")
IMPLEMENTATIONS = ("ddpexec", "torch")
FP32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Convolutions take tf32 by default, captures in fp32 do not; runs that are compared with those must not either."""
SEVERAL = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_DEBUG": "WARN",
}
"""What lets NCCL take several ranks on one GPU, as machines of their own that reach each other by network alone."""
MINUTE_S = 60.0


@dataclass(frozen=True)
class Scope:
    """What steps are made for.

    Attributes:
        out: folder for everything.
        machine: what `studies.gpu.machine` printed.
        quick: as little as shows that everything runs.
    """

    out: Path
    machine: dict[str, Any]
    quick: bool

    @property
    def device(self) -> str:
        """`cuda` or `cpu`."""
        return str(self.machine["device"])

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    @property
    def backend(self) -> str:
        """Backend of a rank that has the device for itself."""
        return "nccl" if self.on_gpu else "gloo"

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are run beside a reference without DDP."""
        if not self.on_gpu:
            return ("mlp",)
        return ("resnet50",) if self.quick else ("resnet50", "bert-base")

    @property
    def iterations(self) -> int:
        """Of a run."""
        return 5 if self.quick else 50 if self.on_gpu else 10

    def batch(self, model: str) -> int:
        """Return the smaller of the two batch sizes of a model."""
        return int(load_workload(model).batch_size) if self.on_gpu else CPU_BATCH.get(model, 1)

    def workload(self, model: str, precision: str, batch: int) -> Path:
        """Return where a capture is kept: by its name."""
        name = f"{model}@{str(self.machine['model']).lower()}-{precision}-b{batch}"
        return self.out / "workloads" / f"{name}.json.gz"


def machine_step(device: str) -> Step:
    """Return the step that everything else is chosen by."""

    def gives(output: str) -> str:
        found = document(output)
        return f"{found.get('name', found['model'])}, torch {found['torch']}"

    return Step("machine", ("-m", "studies.gpu.machine", "--device", device), 2 * MINUTE_S, gives=gives)


def steps(scope: Scope) -> list[Step]:
    """Return every step after the machine's."""
    return [
        *captures(scope),
        tests(scope),
        *one_rank(scope),
        *shared(scope),
        bench(scope),
        *under_load(scope),
        *several_over_nccl(scope),
    ]


def captures(scope: Scope) -> Iterator[Step]:
    """Yield a capture of every shipped model in each precision at two batch sizes."""
    capability = scope.machine.get("capability", [AMPERE, 0])[0]
    for model in ESTIMATED if not scope.quick else scope.models:
        for precision in PRECISIONS[scope.device]:
            skip = "" if precision == "fp32" or capability >= AMPERE else f"this GPU has no {precision}"
            for batch in (scope.batch(model), 2 * scope.batch(model)):
                path = scope.workload(model, precision, batch)
                arguments = (
                    *("-m", "ddpexec", "capture", "--model", model, "--precision", precision),
                    *("--batch-size", str(batch), "--device", scope.device),
                    *("--iterations", str(scope.iterations if scope.on_gpu else 3), "-o", str(path)),
                )
                name = f"capture-{model}-{precision}-b{batch}"
                yield Step(name, arguments, 10 * MINUTE_S, skip=skip)


def tests(scope: Scope) -> Step:
    """Return the tests of a GPU."""
    arguments = ("-m", "pytest", "tests/gpu", "-v", "-rs")
    return Step("tests", arguments, 30 * MINUTE_S)


def one_rank(scope: Scope) -> Iterator[Step]:
    """Yield each model alone, then under each DDP on one rank, with moments taken and without."""
    for model in scope.models:
        subject = ("--model", model, "--batch-size", str(scope.batch(model)))
        count = ("--iterations", str(scope.iterations))
        alone = ("-m", "studies.gpu.alone", *subject, *count, "--device", scope.device)
        yield Step(f"alone-{model}", alone, 10 * MINUTE_S, FP32, gives=step_of)
        for implementation in IMPLEMENTATIONS:
            for kind, options in (("", ()), ("-unstamped", ("--no-stamps",))):
                name = f"run-{model}-{implementation}{kind}"
                yield _run(scope, name, 1, (*subject, *count, "--impl", implementation, *options))


def shared(scope: Scope) -> Iterator[Step]:
    """Yield runs of two and four ranks that share the device over gloo."""
    model = scope.models[0]
    batch = str(max(1, scope.batch(model) // 4))
    for ranks in (2, 4):
        for implementation in IMPLEMENTATIONS:
            options = ("--model", model, "--batch-size", batch, "--impl", implementation)
            count = ("--iterations", str(5 if scope.quick else 20))
            yield _run(scope, f"shared-{ranks}-{implementation}", ranks, (*options, *count))


def bench(scope: Scope) -> Step:
    """Return the benchmark of our DDP against torch's."""
    chosen = (
        ("--case", "mlp-1-copy-default", "--launches", "1", "--blocks", "2") if scope.quick else ("--launches", "2")
    )
    kept = ("--stop", "1500s", "-o", str(scope.out / "bench.json"))
    arguments = ("studies/benchmarks/executor.py", "--device", scope.device, *chosen, *kept)
    return Step("bench", arguments, 40 * MINUTE_S, unfinished="stopped: ", gives=mean_of)


def under_load(scope: Scope) -> Iterator[Step]:
    """Yield what slows a backward: collectives of ranks that share the device, and plain copies."""
    model = scope.models[0]
    path = str(scope.out / "under-load.json")
    options = ("--backend", "gloo", "--device", scope.device, "--under-load", model, "-o", path, "--json")
    sizes = ("-b", "4K", "-e", "64K", "-f", "4") if scope.quick else ("-f", "4")
    yield Step("under-load", (*torchrun(2), "microbench", *options, *sizes), 15 * MINUTE_S, gives=slowed)
    subject = ("--model", model, "--batch-size", str(scope.batch(model)), "--iterations", str(scope.iterations))
    copies = ("-m", "studies.gpu.alone", *subject, "--device", scope.device, "--copies")
    yield Step("copies", copies, 10 * MINUTE_S, gives=slowed)


def several_over_nccl(scope: Scope) -> Iterator[Step]:
    """Yield tables of allreduce of two ranks on one GPU, first as NCCL likes, then by algorithm and protocol.

    On a CPU one table over gloo stands for them.
    """
    begin = (*torchrun(2, "studies.gpu.host_of_its_own"), "microbench", "--backend", scope.backend)
    first = _table(scope, "several" if scope.on_gpu else "several-gloo", begin, {}, ())
    yield first
    for algorithm in ALGORITHMS if scope.on_gpu else ():
        for protocol in PROTOCOLS:
            choice = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            yield _table(scope, f"several-{algorithm}-{protocol}".lower(), begin, choice, (first.name,))


def torchrun(ranks: int, module: str = "ddpexec") -> tuple[str, ...]:
    """Return the arguments that start a module on several ranks."""
    return ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", module)


def _run(scope: Scope, name: str, ranks: int, options: tuple[str, ...]) -> Step:
    where = ("--device", scope.device, "--backend", scope.backend if ranks == 1 else "gloo")
    out = ("--out", str(scope.out / "traces" / name), "--json")
    return Step(name, (*torchrun(ranks), "run", *options, *where, *out), 10 * MINUTE_S, FP32, gives=step_of)


def _table(scope: Scope, name: str, begin: tuple[str, ...], choice: dict[str, str], after: tuple[str, ...]) -> Step:
    path = str(scope.out / "allreduce" / f"{name}.json")
    sizes = ("-b", "4K", "-e", "64K" if scope.quick else "64M", "-f", "4")
    arguments = (*begin, "--device", scope.device, *sizes, "-o", path, "--json")
    environment = {**SEVERAL, **choice} if scope.on_gpu else {}
    return Step(name, arguments, 5 * MINUTE_S, environment, after=after, may_fail=scope.on_gpu, gives=fastest)


def step_of(output: str) -> str:
    """Return the step's time from the document of a run."""
    found = document(output)
    step_s = found["iteration_s"] if "iteration_s" in found else found["step_s"]
    return f"{step_s * 1e3:.2f} ms a step"


def slowed(output: str) -> str:
    """Return the slow-downs of a document."""
    found = document(output)
    factors = {name: value for name, value in found.get("ddp", found).items() if name.endswith("_slowdown")}
    return ", ".join(f"{name} {value:.3f}" for name, value in factors.items())


def mean_of(output: str) -> str:
    """Return the benchmark's own summary."""
    return next((line for line in output.splitlines() if line.startswith("geometric mean")), "no case was judged")


def fastest(output: str) -> str:
    """Return the largest size of a table and its bandwidth."""
    last = document(output)["results"][-1]
    return f"{last['size']:,} B in {last['in_place']['time']:.0f} us"
