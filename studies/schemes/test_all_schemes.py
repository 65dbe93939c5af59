from __future__ import annotations

import pytest

from ddpsim.schedules.named import scheme_named
from studies.schemes.all_schemes import MACHINES, MODELS, SCHEMES, TARGET, Cell, rows, schedule_of, sent_bytes


def test_bytes_on_the_wire_are_the_closed_forms() -> None:
    size = 102_228_128
    forms = {
        "ddp": 2 * 3 / 4 * size,
        "averaging:8": 2 * 3 / 4 * size / 8,
        "parameter-server": size,
        "zero1": 2 * 3 / 4 * size,
    }
    for scheme, expected in forms.items():
        found = Cell(scheme, "4xrtx4090", "resnet50").prediction()
        assert sum(parameter.size_bytes for parameter in found.workload.parameters) == size
        assert sent_bytes(schedule_of(found), 4) == pytest.approx(expected)


def test_the_page_has_each_scheme_on_each_machine() -> None:
    page = TARGET.read_text()
    for scheme in SCHEMES:
        scheme_named(scheme)
        assert page.count(f"| `{scheme}` |") == len(MACHINES) * len(MODELS) + 1


def test_rows_of_the_cheapest_table_are_those_of_the_page() -> None:
    """One of its twelve tables, with every scheme; `make check` makes all."""
    page = TARGET.read_text()
    for scheme, step_ms, faster, *_ in rows("4xrtx4090", "resnet50", list(SCHEMES)):
        assert f"| `{scheme}` | {step_ms:,.1f} | {faster:.2f} |" in page, scheme
