"""PyTorch's own DDP table, predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from ddpsim.collectives.calibration import Calibration
from studies.accuracy.aws_post import section
from studies.published.published_fit import SHARE, START, cap_difference, fit, targets
from studies.published.published_table import GPUS, MODELS, MORE_MODELS, Case, Predictor, published

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("published.md")
TEMPLATE = Path(__file__).with_name("published.md.in")
MANY = GPUS[1:]
UNITS = {name: ("us", 1e6) for name in START if name.endswith("_s")}

Constants = Mapping[str, float]


class Page:
    """The page's tables, from the measured rows and a predictor."""

    def __init__(self) -> None:
        self.medians, self.quartiles = published()
        self.predictor = Predictor(self.medians)

    def text(self) -> str:
        """Fit, predict, and return the page."""
        alone, both = (
            fit(self.predictor, targets(self.medians, self.quartiles, models)) for models in (MODELS[:1], MODELS)
        )
        return TEMPLATE.read_text().format(
            constants=_lines(self.constants(alone, both)),
            summary=_lines(self.summary(alone, both)),
            both=_lines(self.steps(both)),
            alone=_lines(self.steps(alone)),
            caps=_lines(self.caps(alone, both)),
            one=_lines(self.one_gpu(alone, both)),
            aws=_lines(section()),
            second=", ".join(self.second()),
        )

    def second(self) -> Iterator[str]:
        """Yield ResNeXt-50's overheads over the one-GPU row of the run for the other cap."""
        between = self.quartiles[Case(MODELS[1], 1, 1)].minus(self.quartiles[Case(MODELS[1], 1)]).middle
        for gpus in MANY:
            yield f"{(self.overhead_measured(MODELS[1], gpus) - between) * 1e3:.1f}"

    def constants(self, alone: Constants, both: Constants) -> Iterator[str]:
        """Yield the fitted constants."""
        yield "| constant of `nccl.ddp` | prior | fitted to ResNet-50 | fitted to both |"
        yield "|---|---|---|---|"
        priors = Calibration.priors("nccl")
        for name in START:
            values = (priors[f"nccl.ddp.{name}"], alone[name], both[name])
            yield f"| `{name}` | " + " | ".join(_value(name, value) for value in values) + " |"

    def overhead(self, model: str, gpus: int, constants: Constants) -> tuple[float, float, float]:
        """Return the overhead over one GPU as measured, half the width that rounding left it, and as predicted."""
        measured = self.medians[Case(model, gpus)].minus(self.medians[Case(model, 1)])
        seconds = self.predictor.seconds
        predicted = seconds(Case(model, gpus), constants) - seconds(Case(model, 1), constants)
        return measured.middle, measured.half, predicted

    def steps(self, constants: Constants) -> Iterator[str]:
        """Yield a row a case: step and overhead, predicted beside measured."""
        yield "| model | GPUs | step, ms | predicted | error | overhead, ms | predicted | error | in reach |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for model in (*MODELS, *MORE_MODELS):
            for gpus in MANY:
                step = self.medians[Case(model, gpus)]
                predicted = self.predictor.seconds(Case(model, gpus), constants)
                over, half, guess = self.overhead(model, gpus, constants)
                off = predicted / step.middle - 1
                fine = abs(off) <= 0.02, abs(guess - over) <= max(SHARE * over, half)
                words = ("step", "overhead")
                yield (
                    f"| {model} | {gpus} | {_ms(step.middle)} ± {_ms(step.half)} | {_ms(predicted)} | {off:+.1%} | "
                    f"{_ms(over)} ± {_ms(half)} | {_ms(guess)} | {_ms(guess - over, '+')} ({guess / over - 1:+.0%}) | "
                    f"{', '.join(word for word, good in zip(words, fine, strict=True) if good) or 'neither'} |"
                )

    def summary(self, alone: Constants, both: Constants) -> Iterator[str]:
        """Yield mean errors of the overhead beside those of the best constants, fitted to the same rows."""
        yield "| fitted to | judged on | this model | best constant, ms | best constant share of the one-GPU step |"
        yield "|---|---|---|---|---|"
        for constants, fitted in ((alone, MODELS[:1]), (both, MODELS)):
            flat, share = self._best(fitted, lambda model: 1.0), self._best(fitted, self._one)
            for model in (*MODELS, *MORE_MODELS):
                rows = [self.overhead(model, gpus, constants) for gpus in MANY]
                errors = (
                    fmean(abs(guess / over - 1) for over, _, guess in rows),
                    fmean(abs(flat / over - 1) for over, _, _ in rows),
                    fmean(abs(share * self._one(model) / over - 1) for over, _, _ in rows),
                )
                held = "" if model in fitted else ", held out"
                yield f"| {' and '.join(fitted)} | {model}{held} | " + " | ".join(f"{e:.0%}" for e in errors) + " |"

    def _one(self, model: str) -> float:
        return self.medians[Case(model, 1)].middle

    def _best(self, models: Sequence[str], unit: Callable[[str], float]) -> float:
        """Return the constant of least mean relative error, in units of `unit`; it is one of the measured values."""
        rows = [(self.overhead_measured(model, gpus), unit(model)) for model in models for gpus in MANY]
        return min(
            (over / each for over, each in rows), key=lambda c: sum(abs(c * each / over - 1) for over, each in rows)
        )

    def overhead_measured(self, model: str, gpus: int) -> float:
        """Return the measured overhead over one GPU."""
        return self.medians[Case(model, gpus)].middle - self._one(model)

    def caps(self, alone: Constants, both: Constants) -> Iterator[str]:
        """Yield what a cap of 1 MiB adds to a step over one of 25."""
        head = "| model | GPUs | measured, ms | less that on one GPU, ms | predicted, ResNet-50's fit | both |"
        yield head
        yield "|---" * (head.count("|") - 1) + "|"
        for model in MODELS:
            for gpus in GPUS:
                raw = self.quartiles[Case(model, gpus, 1)].minus(self.quartiles[Case(model, gpus)])
                more = cap_difference(self.quartiles, model, gpus)
                beyond = f"{_ms(more.middle)} ± {_ms(more.half)}" if gpus > 1 else "0"
                guesses = (self._cap(model, gpus, constants) for constants in (alone, both))
                row = (model, str(gpus), f"{_ms(raw.middle)} ± {_ms(raw.half)}{' (noisy)' * raw.noisy}", beyond)
                yield "| " + " | ".join((*row, *map(_ms, guesses))) + " |"

    def _cap(self, model: str, gpus: int, constants: Constants) -> float:
        seconds = self.predictor.seconds
        return seconds(Case(model, gpus, 1), constants) - seconds(Case(model, gpus), constants)

    def one_gpu(self, alone: Constants, both: Constants) -> Iterator[str]:
        """Yield what DDP costs on one GPU."""
        yield "| model | measured, ms | predicted, ResNet-50's fit | both |"
        yield "|---|---|---|---|"
        for model in (*MODELS, *MORE_MODELS):
            cost = self.medians[Case(model, 1)].minus(self.medians[Case(model, 0)])
            seconds = self.predictor.seconds
            guesses = (seconds(Case(model, 1), c) - seconds(Case(model, 0), c) for c in (alone, both))
            yield f"| {model} | {_ms(cost.middle)} ± {_ms(cost.half)} | " + " | ".join(map(_ms, guesses)) + " |"


def _ms(seconds: float, sign: str = "") -> str:
    return f"{round(seconds * 1e3, 2) + 0.0:{sign}.2f}"  # nothing has no sign


def _value(name: str, value: float) -> str:
    unit, factor = UNITS.get(name, ("", 1.0))
    return f"{value * factor:.4g} {unit}".strip()


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def text() -> str:
    """Return the page."""
    return Page().text()
