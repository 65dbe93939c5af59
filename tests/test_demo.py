from __future__ import annotations

from pathlib import Path
from unittest import mock

from demo import demo


def test_the_demo_stays_on_the_processor_where_there_is_a_gpu_too(tmp_path: Path) -> None:
    lines: list[str] = []

    def noted(name: str, *arguments: object, shown: str | None = None) -> str:
        lines.append(" ".join(map(str, arguments)))
        return ""

    read = ("validate", "validation_row", "load_prediction", "read_trace", "json_text", "table", "draw_comparison")
    with mock.patch.multiple(demo, module=noted, **dict.fromkeys(read, mock.DEFAULT)) as unread:
        unread["json_text"].return_value = ""
        demo.hold_against_a_real_run(tmp_path)
    ranks = [line for line in lines if "--nproc-per-node" in line]
    assert len(ranks) == 4
    assert all("--backend gloo" in line for line in ranks)
    assert all("--device cpu" in line for line in lines if line.startswith("capture"))
