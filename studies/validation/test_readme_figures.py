"""The README's figures of the lab are those of the validation page."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = " ".join((ROOT / "README.md").read_text().split())
PAGE = Path(__file__).with_name("validation.md").read_text()
LAB = PAGE[PAGE.index("\n## Lab") : PAGE.index("\n## One GPU")]
WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip


def rows(title: str) -> list[list[str]]:
    """Return the cells of the lab's table under `title`, without its head."""
    text = LAB[LAB.index(f"\n### {title}\n") + 1 :].partition("\n### ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def measure(label: str) -> float:
    """Return what was predicted before the runs, of one row of the measures, in percent."""
    (cell,) = (row[1] for row in rows("Measures") if row[0] == label)
    return percent(cell)


def percent(cell: str) -> float:
    return float(cell.partition(" %")[0])


def real() -> list[list[str]]:
    """Return the rows of configurations that compute for real."""
    return [row for row in rows("Every configuration") if "_real-" in row[0]]


def real_errors() -> list[float]:
    return [abs(percent(row[5])) for row in real()]


def told(sentence: str) -> list[str]:
    """Return what stands in the README for each `N` of `sentence`."""
    (found,) = re.findall(re.escape(sentence).replace("N", r"([\w.]+?)"), README)
    return [found] if isinstance(found, str) else list(found)


@pytest.mark.parametrize(
    ("sentence", "labels"),
    [
        ("N % off in the median of", ["absolute error of the iteration, median"]),
        ("N % at the 95th percentile", ["absolute error of the iteration, 95th percentile"]),
        (
            "N % of the time that several processes add to one process's step, "
            "where the best trivial predictor is N % off",
            ["absolute error of the overhead over one process, median", "the same, best trivial predictor"],
        ),
    ],
)
def test_errors_are_those_predicted_before_the_runs(sentence: str, labels: list[str]) -> None:
    for text, label in zip(told(sentence), labels, strict=True):
        assert rounds_to(measure(label), text), (label, text)


def test_errors_of_what_computes_for_real_are_its_rows() -> None:
    middle, worst = told("models on two cores: N % off in the median, N % at worst")
    assert rounds_to(median(real_errors()), middle)
    assert rounds_to(max(real_errors()), worst)


def test_configurations_and_models_are_counted() -> None:
    assert count(*told("off in the median of N configurations")) == len(rows("Every configuration"))
    configurations, models = told("N of them compute for real, all N models")
    assert count(configurations) == len(real())
    assert count(models) == len({re.sub(r"(-s\d+)?_real-.*", "", row[0]) for row in real()})


def count(text: str) -> int:
    return int(text) if text.isdigit() else WORDS.index(text.lower())


def rounds_to(value: float, text: str) -> bool:
    """Return whether `value`, itself rounded to hundredths, is `text` to as many places as that has."""
    places = len(text.partition(".")[2])
    return bool(abs(value - float(text)) <= 0.5 * 10**-places + 0.005 + 1e-9)
