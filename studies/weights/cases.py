"""Cases of the study: a random model, a scheme with random options, and how it is trained."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ddpsim.bucketing import BucketCaps
from studies.weights.features import featured, lowered_to
from studies.weights.models import ROWS, WIDTH, WORDS, Linear, RandomModel

Pick = random.Random

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    # Where a gradient is rounding alone, an optimizer that divides by its size takes a whole step: hence eps.
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1, eps=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, eps=1e-3),
}
"""Those that treat elements alone, which schemes that update flat parts ask for."""


def _some(name: str, *options: Callable[[Pick], str]) -> Callable[[Pick], str]:
    """Return what writes a scheme with some of its options, in any order."""

    def text(pick: Pick) -> str:
        chosen = [option(pick) for option in options if pick.random() < 0.5]
        pick.shuffle(chosen)
        return name + ":" * bool(chosen) + ",".join(chosen)

    return text


def _steps(name: str, *options: Callable[[Pick], str]) -> Callable[[Pick], str]:
    """Return what writes a scheme whose first option is a number of steps."""
    return lambda pick: ",".join([f"{name}:{pick.randint(1, 3)}", *(o(pick) for o in options if pick.random() < 0.6)])


def _priority(pick: Pick) -> str:
    segment = pick.choice(("", "48B", "200B", "1KiB"))
    credit = pick.choice(("", f"credit={pick.choice((100, 1000))}B"))
    return "priority" + ":" * bool(segment or credit) + ",".join(filter(None, (segment, credit)))


def _number(key: str, *values: object) -> Callable[[Pick], str]:
    return lambda pick: f"{key}={pick.choice(values)}"


_SERVERS = _number("servers", 1, 1, 2)
TUNED_DDP = ("torch", "ddpexec")
"""What `tuned=NAME` trains by: torch's DDP or ours; other names are schemes of `ScheduledDataParallel`."""
SCHEMES: dict[str, Callable[[Pick], str]] = {
    "ddp": lambda pick: "ddp",
    "naive": lambda pick: "naive",
    "flat": lambda pick: "flat",
    "priority": _priority,
    "dear": lambda pick: "dear",
    "zero1": lambda pick: "zero1",
    "zero2": lambda pick: "zero2",
    "horovod": _some("horovod", _number("fusion", "80B", "500B"), _number("cycle", "0.2ms", "2ms")),
    "multiworker-mirrored": _some("multiworker-mirrored", _number("pack", "80B", "500B")),
    "gradientflow": _some("gradientflow", _number("density", 0.1, 0.5, 1), _number("chunk", 1, 4, 33, 40000)),
    "parameter-server": _some("parameter-server", _SERVERS, lambda pick: "tictac", lambda pick: "async"),
    "parallax": _some("parallax", _SERVERS, _number("density", 0.5)),
    "averaging": _steps("averaging"),
    "slowmo": _steps("slowmo", _number("momentum", 0, 0.8), _number("rate", 0.9)),
    "local-sgd": _steps("local-sgd", _number("ranks", 1, 2, 3, 4)),
    "fsdp2": _some("fsdp2", lambda pick: pick.choice(("noreshard", "reshard_root"))),
    "hsdp": lambda pick: ",".join(
        [f"hsdp:{pick.choice((1, 1, 2, 2, 3, 4))}", *(["noreshard"] if pick.random() < 0.4 else [])]
    ),
    "onebit": lambda pick: "compression=onebit",
    "topk": lambda pick: f"compression=topk:{pick.choice((0.1, 0.5))}",
    "powersgd": lambda pick: "compression=powersgd:1",
    "adaptive": lambda pick: "compression=adaptive",
    "half": lambda pick: f"compression={pick.choice(('none', 'fp16', 'bf16'))}",
    "tuned": lambda pick: f"tuned={pick.choice((*TUNED_DDP, *TUNED_DDP, 'ddp', 'priority', 'dear'))}",
    "not here": lambda pick: pick.choice(("dataparallel", "zero0", "zero3", "zero1:deepspeed", "zero2:deepspeed")),
}
"""By name, what writes a scheme with some of the options that it accepts."""

SERVING = ("parameter-server", "parallax")
ONCE = (*SERVING, "gradientflow")
STEPS_ANNOUNCED = (*ONCE, "averaging", "slowmo", "local-sgd")
"""Those that have to be told how many iterations a step has: others know a step when it is taken."""
UNITS, HOOKS = ("fsdp2", "hsdp"), ("onebit", "topk", "powersgd", "adaptive", "half")
EXACT, SINGLE, HALF, COMPLEX = torch.float64, torch.float32, torch.bfloat16, torch.complex64
TOLERANCES = {EXACT: 1e-9, SINGLE: 2e-5, COMPLEX: 2e-5, HALF: 0.03}
"""How far weights of around one may end from the reference after a handful of steps, by the coarsest dtype in a model.

Sums of three or four ranks round in another order; bfloat16 has eight bits, of which a weight may lose some.
"""
REAL = ((EXACT,), (SINGLE,), (EXACT, SINGLE))
ALL = (*REAL, (EXACT,), (EXACT,), (EXACT, COMPLEX), (EXACT, HALF))
# Units are of one dtype. One bit is a sign, which rounding chooses where a gradient is nearly made up for; so is a
# level, which entries are the largest, and the column that a matrix of rounding errors is made to.
_ROUNDED = ("onebit", "topk", "powersgd", "adaptive")
DTYPES = {"fsdp2": ((EXACT,), (SINGLE,)), "hsdp": ((EXACT,), (SINGLE,)), **dict.fromkeys(_ROUNDED, ((EXACT,),))}
TUNED_STEPS = 80
"""Of a tuned case: a tuner looks at eleven steps before it tries plans, and is over after sixty."""
TUNED_SCHEDULED = ("tuned=ddp", "tuned=priority", "tuned=dear")
ROUNDED = {"compression=fp16": 2e-3, "compression=bf16": 2e-2}
"""Where gradients are rounded before they are summed."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case is what is trained, by what, and how.

    Attributes:
        number: its place, counted from 0.
        seed: of its model and batches.
        world: ranks.
        family: key of `SCHEMES`.
        scheme: its text; `compression=NAME` is our DDP with that hook, `tuned=NAME` is inside `ddpexec.tuned`.
        options: keyword arguments of `ScheduledDataParallel`.
        how: where several micro-batches make a step: which send. `every` and `last` the last one, by `every` or
            `no_sync`; `each` all of them, announced by `accumulate`; `untold` all of them, not announced.
        eager_bytes: of a gradient that is copied as it comes.
        linear: whether the model is linear in its parameters.
        resumes: after how many steps all state is saved and taken up by a wrapper made anew; 0 is never.
        feature: what of DDP's is asked for beside the scheme's own: `static`, `hook`, `hook fp16`, `join`, `join
            present` (sums are divided by the ranks that have input), `mixed float32`, `mixed bfloat16`; none where
            empty.
    """

    number: int
    seed: int
    world: int
    family: str
    scheme: str
    optimizer: str
    dtypes: tuple[torch.dtype, ...]
    sparse: bool | None
    unused: bool
    by_rank: bool
    steps: int
    micros: int
    how: str
    clip: float | None
    to_none: bool
    rates: bool
    looks: bool
    eager_bytes: int
    linear: bool = False
    resumes: int = 0
    feature: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, rank: int) -> RandomModel | Linear:
        """Return the model as `rank` makes it: of its own weights, which rank 0's replace."""
        torch.manual_seed(self.seed + 7919 * rank)
        if self.linear:
            return Linear()
        fit = self.family in UNITS and self.seed % 8 > 0
        pick, sparse = Pick(self.seed), self.sparse
        return RandomModel(pick, list(self.dtypes), unused=self.unused, sparse=sparse, shareable=not fit, plain=fit)

    def batch(self, step: int, micro: int, rank: int) -> tuple[Tensor, Tensor, int]:
        """Return inputs of the model: numbers, words, and what picks the blocks that are used."""
        draw = torch.Generator().manual_seed(self.seed + 101 * step + 11 * micro + rank)
        moment = 0 if self.feature == "static" else 13 * step + micro
        number = self.seed + moment + (1009 * rank if self.by_rank else 0)
        words = torch.randint(WORDS - 1, (ROWS,), generator=draw)
        return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=draw), words, number

    def steps_of(self, rank: int) -> int:
        """Return how many steps a rank has input for."""
        return Pick(f"{self.seed}/{rank}").randint(1, self.steps) if self.joins else self.steps

    @property
    def joins(self) -> bool:
        """Whether ranks have different numbers of inputs."""
        return self.feature.startswith("join")

    def rate(self, step: int) -> float:
        """Return the factor on the learning rate in a step."""
        return 0.8**step if self.rates else 1.0

    @property
    def tolerance(self) -> float:
        """How far weights may be from the reference's."""
        if self.scheme in ROUNDED:
            return ROUNDED[self.scheme]
        lowered = lowered_to(self.feature)
        coarsest = max(TOLERANCES[dtype] for dtype in (*self.dtypes, *([lowered] if lowered else [])))
        if self.feature == "hook fp16":
            coarsest = max(coarsest, ROUNDED["compression=fp16"])
        if self.family != "slowmo":
            return coarsest
        # What an average is rounded by goes into the slow momentum, and from there into each further step.
        momentum = re.search(r"momentum=([\d.]+)", self.scheme)
        return coarsest / (1 - float(momentum[1] if momentum else 0.5))

    def __str__(self) -> str:
        others = {k: v for k, v in vars(self).items() if k not in ("number", "world", "scheme", "options", "family")}
        told = ", ".join(f"{key}={value}" for key, value in {**self.options, **others}.items())
        return f"case {self.number}: {self.scheme} on {self.world} ranks, {told}"


def case_of(seed: int, number: int, families: list[str]) -> Case:
    """Return the `number`-th case of a seed."""
    pick = Pick(f"{seed}/{number}")
    family = families[number % len(families)]
    text, world, micros = SCHEMES[family](pick), pick.choice((2, 3, 4)), pick.choice((1, 1, 2, 3))
    how, unused = _how(pick, family) if micros > 1 else "one", pick.random() < 0.4
    # Ranks that go alone add up in any order where gradients do not depend on the weights.
    linear = "async" in text and world - (2 if "servers=2" in text else 1) > 1
    plain = family in UNITS or family in HOOKS
    case = Case(
        number=number,
        seed=pick.randrange(1 << 30),
        world=world,
        family=family,
        scheme=text,
        optimizer=pick.choice(list(OPTIMIZERS)),
        dtypes=pick.choice(DTYPES.get(family, REAL if plain else ALL)),
        sparse=_sparse(pick, family),
        unused=unused,
        by_rank=unused and family not in UNITS and pick.random() < 0.6,
        steps=pick.randint(3, 6),
        micros=micros,
        how=how,
        clip=0.5 if not plain and family not in SERVING and pick.random() < 0.2 else None,
        # Which zeros a codec's feedback is added to, torch's reducer says by which outputs the loss leaves out.
        to_none=pick.random() < 0.6 or (family in HOOKS and family != "half"),
        rates=pick.random() < 0.3,
        looks=pick.random() < 0.4,
        eager_bytes=pick.choice((1, 90, 65536)),
        linear=linear,
        options={} if family in UNITS else _options(pick, family, how, micros, unused),
    )
    if family == "tuned":
        return _tuned(pick, case)
    if linear:
        case = replace(case, dtypes=(EXACT,), optimizer="sgd")
        return replace(case, unused=False, by_rank=False, sparse=None, looks=False)
    if not plain and family not in SERVING and not case.options["learn"] and pick.random() < 0.3:
        case = replace(case, resumes=pick.randint(1, case.steps - 1))
    if not plain and family != "not here":
        case = featured(pick, case)
    takes_rows = family == "parallax" or (family in HOOKS and case.sparse)
    refusable = family == "parallax" and pick.random() < 0.1
    return replace(case, optimizer=pick.choice(("sgd", "adagrad"))) if takes_rows and not refusable else case


def _tuned(pick: Pick, case: Case) -> Case:
    """Return a case with enough steps for a tuner to try plans in, and what a tuner or a wrapper leaves room for."""
    options, own = dict(case.options), case.scheme in TUNED_SCHEDULED
    options |= {"overlap": True, "learn": 0} if own else {"gradient_as_bucket_view": pick.random() < 0.4}
    for name in ("every", "accumulate", *(() if own else ("overlap", "learn"))):
        options.pop(name, None)
    how = pick.choice(("last", "untold")) if case.micros > 1 else "one"
    static = pick.random() < 0.2 and how != "last"
    if static:
        options |= {"static_graph": True, "find_unused_parameters": pick.random() < 0.3}
    optimizer = pick.choice(("sgd", "adagrad")) if case.sparse else case.optimizer
    # torch's DDP, and ours with it, ends a static graph of which the loss leaves an output out.
    return replace(
        case, how=how, steps=TUNED_STEPS, dtypes=(EXACT,), clip=None, rates=False, looks=False, optimizer=optimizer,
        options=options, feature="static" if static else "", unused=case.unused and (own or not static),
    )  # fmt: skip


def _how(pick: Pick, family: str) -> str:
    """Return which of several micro-batches send: those that a family can do, and now and then others."""
    if family in UNITS or family in HOOKS:
        return "last"
    if family in ONCE:
        return pick.choice(("every", "every", "last", "last", "each"))
    return pick.choice(("every", "last", "each") if family in STEPS_ANNOUNCED else ("every", "last", "each", "untold"))


def _sparse(pick: Pick, family: str) -> bool | None:
    """Return whether an embedding has sparse gradients; None is no embedding."""
    if family == "parallax":
        return True
    some = 0.3 if family in ("onebit", "topk", "adaptive") else 0.0 if family in ("half", "powersgd") else 0.04
    return True if pick.random() < some else pick.choice((None, False))


def _options(pick: Pick, family: str, how: str, micros: int, unused: bool) -> dict[str, Any]:
    """Return the keyword arguments of `ScheduledDataParallel`; of our DDP those that it has too."""
    options: dict[str, Any] = {
        "caps": pick.choice((BucketCaps(), BucketCaps(0), BucketCaps(0.0002), BucketCaps(0.001, 0.0001))),
        "find_unused_parameters": unused or pick.random() < 0.2,
        "broadcast_buffers": pick.random() < 0.7,
    }
    if family in HOOKS:
        return options
    options["overlap"] = pick.random() < 0.75
    options["learn"] = pick.choice((0, 0, 1, 3))
    if family in SERVING and pick.random() < 0.9:
        options["learn"] = 0
    if how == "every":
        options["every"] = micros
    if how == "each":
        options["accumulate"] = micros
    return options
