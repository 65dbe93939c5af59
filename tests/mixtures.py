"""A small step with mixtures of experts, made by hand: a layer is a dense product, a gate, and experts of two each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpsim.bucketing import Parameter
from ddpsim.workload import Workload
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.files import save_workload
from ddpsim.workload.gpus import GPUS
from ddpsim.workload.operators import Operator

TOKENS, WIDTH, INNER, EXPERTS, LAYERS = 8192, 1024, 4096, 8, 3
EXPERT_BYTES = 4 * 2 * WIDTH * INNER
"""Of one expert's two weights in fp32."""


def _product(rows: int, outputs: int, inputs: int, fixed: int, gradients: tuple[int, ...] = ()) -> Operator:
    moved = 4 * (rows * inputs + rows * outputs + outputs * inputs)
    flops = 2.0 * rows * outputs * inputs
    sizes = (1, rows, outputs, inputs)
    return Operator("gemm", flops, moved, gradients=gradients, fixed_bytes=4 * fixed, term="products", product=sizes)


def _pointwise(values: int) -> Operator:
    return Operator("memory", 0, 8 * values, term="pointwise")


def make_shape(experts: int = EXPERTS, layers: int = LAYERS) -> ModelShape:
    """Return the operators of `layers` layers, each with so many experts, of which each token has one."""
    rows, parameters, uses = TOKENS // experts, list[Parameter](), list[int]()
    forward, backward = list[Operator](), list[list[Operator]]()

    def add(name: str, outputs: int, inputs: int) -> int:
        parameters.append(Parameter(name, (outputs, inputs)))
        uses.append(len(forward))
        return len(parameters) - 1

    for layer in range(layers):
        dense = add(f"layers.{layer}.dense.weight", WIDTH, WIDTH)
        forward.append(_product(TOKENS, WIDTH, WIDTH, WIDTH * WIDTH))
        gate = add(f"layers.{layer}.moe.gate.weight", experts, WIDTH)
        forward.append(_product(TOKENS, experts, WIDTH, experts * WIDTH))
        own: list[list[Operator]] = []
        for expert in range(experts):
            name = f"layers.{layer}.moe.experts.{expert}"
            forward.append(_pointwise(rows * WIDTH))
            up = add(f"{name}.up.weight", INNER, WIDTH)
            forward += [_product(rows, INNER, WIDTH, INNER * WIDTH), _pointwise(rows * INNER)]
            down = add(f"{name}.down.weight", WIDTH, INNER)
            forward += [_product(rows, WIDTH, INNER, WIDTH * INNER), _pointwise(TOKENS * WIDTH)]
            own.append(
                [
                    _pointwise(rows * WIDTH),
                    _product(rows, INNER, WIDTH, WIDTH * INNER),
                    replace(_product(WIDTH, INNER, rows, WIDTH * INNER), gradients=(down,)),
                    _pointwise(rows * INNER),
                    _product(rows, WIDTH, INNER, WIDTH * INNER),
                    replace(_product(INNER, WIDTH, rows, WIDTH * INNER), gradients=(up,)),
                    _pointwise(TOKENS * WIDTH),
                ]
            )
        backward.append(
            [
                *(each for operators in reversed(own) for each in operators),
                _product(experts, WIDTH, TOKENS, experts * WIDTH, (gate,)),
                _product(TOKENS, WIDTH, experts, experts * WIDTH),
                _product(WIDTH, WIDTH, TOKENS, WIDTH * WIDTH, (dense,)),
                _product(TOKENS, WIDTH, WIDTH, WIDTH * WIDTH),
            ]
        )
    made = tuple(each for operators in reversed(backward) for each in operators)
    sample = "sequence of 1024 tokens"
    return ModelShape("mixture", 8, sample, tuple(parameters), (), tuple(forward), made, tuple(uses))


def make_workload(gpu: str = "A100", precision: str = "amp", experts: int = EXPERTS) -> Workload:
    """Return the step as it is estimated on a GPU, with its operators."""
    return estimate(make_shape(experts), GPUS[gpu], precision)


def save_mixture(folder: Path) -> Path:
    """Save the step to a file and return its path."""
    path = folder / "mixture.json"
    save_workload(make_workload(), path)
    return path
