"""Judge `ddpexec estimate` on published one-GPU steps: `python -m studies.estimates` writes the page.

Constants were fitted on the first half alone; the second took no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddpsim.workload.anchors import ROOFLINE_BAND, Anchor, pace_of
from ddpsim.workload.gpus import AchievedGpu, gpu_named
from ddpsim.workload.operators import Operator
from studies.estimates.estimates_fit import Counted, counted, gpu_of, optimizer_of
from studies.estimates.one_gpu_steps import Step, sources, steps

PAGE = Path(__file__).with_name("estimates.md")
TEMPLATE = Path(__file__).parent / "estimates.md.in"
_WITHIN = 0.2
_BATCHES = 4
"""Batches that differ by more are another regime of the same step."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A published step beside what is predicted for it; None where no other row serves.

    Attributes:
        step: as it was published.
        roofline: seconds by the roofline alone.
        torch: seconds by torch's own roofline.
        anchored: by the roofline with the pace of `anchor`.
        anchor: another step of the same GPU.
        carried: by the ratio of two rooflines, from `origin`.
        origin: a step of the same model and precision on another GPU.
    """

    step: Step
    roofline: float
    torch: float
    anchored: float | None
    anchor: Step | None
    carried: float | None
    origin: Step | None

    def error(self, seconds: float | None) -> float | None:
        """Return the signed error of `seconds`."""
        return None if seconds is None else seconds / self.step.seconds - 1


def judge(step: Step, others: Sequence[Step]) -> Judged:
    """Return `step` beside its three predictions; `others` may serve as anchors and origins."""
    row, gpu = counted(step), gpu_of(step)
    anchor = min((other for other in others if _anchors(step, other)), key=_unlike(step), default=None)
    origin = min((other for other in others if _originates(step, other)), key=_far(step), default=None)
    carried = None
    if origin is not None:
        there = counted(origin)
        carried = origin.seconds * row.seconds(gpu) / there.seconds(gpu_of(origin))
    return Judged(
        step,
        row.seconds(gpu),
        torch_s(row),
        None if anchor is None else _paced(row, counted(anchor), gpu),
        anchor,
        carried,
        origin,
    )


def torch_s(row: Counted) -> float:
    """Return the time of `row` by `torch.distributed._tools.RuntimeEstimator`'s cost model, given the data sheet.

    An operator takes the longer of half its operations at 75 % of the peak and its bytes at the bandwidth
    (`torch/utils/_runtime_estimation.py`, torch 2.13, which counts multiply-adds); the optimizer is its bytes.
    """
    step, spec = row.step, gpu_named(row.step.gpu).spec
    peak, wide = 0.75 * spec.peaks[step.precision], 1.0 if step.precision in ("fp32", "tf32") else 0.5

    def operator_s(operator: Operator) -> float:
        moved = operator.traffic_bytes * (1.0 if operator.fp32 else wide)
        return max(operator.flops / 2 / peak, moved / spec.memory_bandwidth)

    kernels_s = sum(operator_s(operator) * count for phase in row.phases for operator, count in phase.items())
    size_bytes = sum(parameter.size_bytes for parameter in row.parameters)
    return step.accumulation * kernels_s + optimizer_of(step).passes * size_bytes / spec.memory_bandwidth


def _paced(row: Counted, anchor: Counted, gpu: AchievedGpu) -> float:
    """Return the time of `row` at the pace at which `anchor` was measured, as `--one-gpu-step` and `--pace-of` do."""
    given = [Anchor("step", anchor.step.seconds)]
    pace = pace_of(anchor.works_s(gpu), sum(anchor.host_s()), given, keep_optimizer=True, place=anchor.step.source)
    forward, backward, optimizer = row.works_s(gpu)
    device = forward * pace.phases[0] + backward * pace.phases[1] + optimizer
    return max(device, sum(row.host_s()) * pace.host)


def _anchors(step: Step, other: Step) -> bool:
    """Whether `other` is another row of the same GPU: another batch, precision or model, not the same run twice."""
    same, theirs = (
        (each.model, each.precision, each.batch_size, each.length, each.fused_attention, each.optimizer)
        for each in (step, other)
    )
    return other.gpu == step.gpu and same != theirs


def _unlike(step: Step) -> Callable[[Step], tuple[object, ...]]:
    """Return the order of anchors: same source, kind of network and precision first; then the nearest batch."""

    def key(other: Step) -> tuple[object, ...]:
        return (
            _kind(other) != _kind(step),
            other.precision != step.precision,
            other.source != step.source,
            other.model != step.model,
            abs(math.log(other.batch_size / step.batch_size)),
            other.seconds,
        )

    return key


def _originates(step: Step, other: Step) -> bool:
    """Whether `other` is the same model and precision on another GPU, and not another form of this one."""
    alike = (other.model, other.precision, other.length, other.fused_attention) == (
        step.model,
        step.precision,
        step.length,
        step.fused_attention,
    )
    return alike and gpu_named(other.gpu).spec.kind != gpu_named(step.gpu).spec.kind


def _far(step: Step) -> Callable[[Step], tuple[object, ...]]:
    """Return the order of origins: same source, a like batch, then the nearest architecture and figures."""
    here = gpu_named(step.gpu)

    def key(other: Step) -> tuple[object, ...]:
        there = gpu_named(other.gpu)
        apart = math.hypot(
            math.log(here.memory_Bps / there.memory_Bps),
            math.log(here.peak_flops[step.precision] / there.peak_flops[step.precision]),
        )
        same = other.source == step.source
        unlike = max(other.batch_size, step.batch_size) > _BATCHES * min(other.batch_size, step.batch_size)
        return (not same, unlike, here.spec.architecture != there.spec.architecture, apart, other.batch_size)

    return key


def _kind(step: Step) -> str:
    return step.model.split("-")[0].rstrip("0123456789_xd")


def _beside(judged: Sequence[Judged]) -> list[str]:
    """Return for each group of steps both rooflines, how often ours is nearer, and how many are inside the band."""
    low, high = ROOFLINE_BAND
    lines = []
    for name, of in _GROUPS.items():
        some = [each for each in judged if of(each.step)]
        if not some:
            continue
        ours, torch = ([abs(each.error(getattr(each, by)) or 0.0) for each in some] for by in ("roofline", "torch"))
        nearer = sum(a < b for a, b in zip(ours, torch, strict=True)) / len(some)
        inside = sum(low <= math.log(each.step.seconds / each.roofline) <= high for each in some) / len(some)
        lines.append(
            f"| {name} | {len(some)} | {median(ours):.1%} | {median(torch):.1%} | {nearer:.0%} | {inside:.0%} |"
        )
    return lines


def _eager_transformer(step: Step) -> bool:
    return not step.fused and step.model.startswith(("plain", "gpt2", "vit", "bert"))


_GROUPS: dict[str, Callable[[Step], bool]] = {
    "all": lambda step: True,
    "eager mode": lambda step: not step.fused,
    "transformers, 16 bits, eager mode": lambda step: _eager_transformer(step) and step.precision == "amp",
    "transformers, tf32, eager mode": lambda step: _eager_transformer(step) and step.precision == "tf32",
    "transformers, fp32, eager mode": lambda step: _eager_transformer(step) and step.precision == "fp32",
    "fused by hand": lambda step: step.fused,
}


def _summary(judged: Sequence[Judged]) -> list[str]:
    lines = []
    columns: list[tuple[str, Callable[[Judged], float | None]]] = [
        ("roofline alone", lambda j: j.error(j.roofline)),
        ("anchored on another row of the GPU", lambda j: j.error(j.anchored)),
        ("carried from another GPU", lambda j: j.error(j.carried)),
    ]
    for name, of in columns:
        errors = sorted(abs(error) for j in judged if (error := of(j)) is not None)
        within = sum(error <= _WITHIN for error in errors) / len(errors)
        tail = errors[math.ceil(0.9 * len(errors)) - 1]
        lines.append(f"| {name} | {len(errors)} | {median(errors):.1%} | {tail:.0%} | {within:.0%} |")
    return lines


def row(judged: Judged) -> str:
    """Return a step's line of the page."""
    step = judged.step

    def percent(seconds: float | None) -> str:
        error = judged.error(seconds)
        return "" if error is None else f"{error:+.1%}"

    anchor = "" if judged.anchor is None else f"{judged.anchor.model}, {judged.anchor.precision}"
    if judged.anchor is not None:
        anchor += f", b{judged.anchor.batch_size}" + ("" if judged.anchor.source == step.source else " (other source)")
    origin = "" if judged.origin is None else f"{judged.origin.gpu}, b{judged.origin.batch_size}"
    cells = [
        step.source,
        step.gpu,
        step.model + (f"-s{step.length}" if step.length else ""),
        f"{step.precision}, b{step.batch_size}",
        f"{step.seconds * 1e3:.1f}",
        percent(judged.roofline),
        percent(judged.torch),
        percent(judged.anchored),
        anchor,
        percent(judged.carried),
        origin,
    ]
    return "| " + " | ".join(cells) + " |"


_SUMMARY = "| | steps | median error | 90th percentile | within 20 % |\n|---|--:|--:|--:|--:|"
_BESIDE = "| | steps | median error | torch's roofline | ours nearer | inside the band |\n|---|--:|--:|--:|--:|--:|"
_ROWS = (
    "| source | GPU | model | precision, batch | published ms | roofline | torch's | anchored | on | carried | from |\n"
    "|---|---|---|---|--:|--:|--:|--:|---|--:|---|"
)


def page(judged: Sequence[Judged]) -> str:
    """Return the page."""
    first = [each for each in judged if each.step.fitted]
    second = [each for each in judged if not each.step.fitted]
    tables = {
        "SECOND_BESIDE": "\n".join([_BESIDE, *_beside(second)]),
        "FIRST_BESIDE": "\n".join([_BESIDE, *_beside(first)]),
        "BAND": "{:.2f} to {:.2f}".format(*map(math.exp, ROOFLINE_BAND)),
        "SECOND_SUMMARY": "\n".join([_SUMMARY, *_summary(second)]),
        "FIRST_SUMMARY": "\n".join([_SUMMARY, *_summary(first)]),
        "SECOND": "\n".join([_ROWS, *map(row, second)]),
        "FIRST": "\n".join([_ROWS, *map(row, first)]),
        "STEPS": str(len(judged)),
        "GPUS": str(len({each.step.gpu for each in judged})),
        "SOURCES": "\n".join(_source(name, source) for name, source in sources().items()),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    return text


def _source(name: str, source: dict[str, object]) -> str:
    where = source.get("repo") or source.get("url")
    places = source.get("files") or [source]
    assert isinstance(places, list)
    files = "; ".join(f"`{p['path']}` at {p['commit']}" for p in places if "commit" in p)
    assumed = " ".join(str(source.get("assumed", "")).split())
    return f"- **{name}**: {where}" + (f", {files}" if files else "") + (f". Assumed: {assumed}" if assumed else "")


def text() -> str:
    """Return the page."""
    every = steps()
    return page([judge(step, every) for step in every])


def main() -> None:
    """Print what the first half alone says."""
    half = [step for step in steps() if step.fitted]
    judged = [judge(step, half) for step in half]
    print("\n".join([_SUMMARY, *_summary(judged), _ROWS, *map(row, judged)]))


if __name__ == "__main__":
    main()
