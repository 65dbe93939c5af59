"""Tables on the terminal are at most 100 characters wide, and numbers in them have no bare point at their end."""

from __future__ import annotations

import pytest

from ddpsim.cli.app import run
from ddpsim.common.tables.cells import format_short
from ddpsim.common.tables.table import WIDEST

COMMANDS = {
    "plan": "plan --workload resnet50 --topology p3.16xlarge --topology dgx-1v --nodes 2",
    "plan that waits": "plan --workload resnet50 --topology dgx-1v --nodes 2 --input-stage load=400ms,workers=2",
    "search": "plan --search --workload bert-large --topology dgx-a100 --nodes 2",
    "compare": "compare --workload bert-large --topology p3.16xlarge --nodes 4 --batch-size 8,32 --link-rate 10,25Gb/s"
    " --schemes ddp,fsdp2 --accumulate 2",
    "sweep": "sweep --workload resnet50 --topology dgx-1v --nodes 1,2 --bucket-cap-mb 25,50 --accumulate 4",
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_tables_are_at_most_a_hundred_characters_wide(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    # Columns are two spaces apart; sentences are broken at another width.
    assert max(len(line) for line in lines if line.count("  ") > 3) <= WIDEST


@pytest.mark.parametrize("value", [99.94, 99.95, 99.96, 99.999, 100.0, 9.999, 0.1, 0.0999, 12345.0])
def test_three_digits_end_with_a_digit(value: float) -> None:
    text = format_short(value)
    assert text[-1].isdigit()
    assert float(text) == pytest.approx(value, rel=5e-3)
