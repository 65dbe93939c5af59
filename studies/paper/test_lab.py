"""The lab's figures are those of the kept runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ddpexec.lab.campaign.spec import load_campaign
from studies.paper import lab

RECORD = Path(__file__).parents[2] / "traces" / "paper"
KEPT = {
    document["configuration"]: document
    for file in sorted((RECORD / "runs").glob("*.json.gz"))
    for document in [json.loads(gzip.decompress(file.read_bytes()))]
}


def test_each_kept_run_has_its_row_with_the_prediction_written_before_it() -> None:
    configurations = {each.name: each for each in load_campaign(RECORD / "campaign.yaml").configurations}
    for name, document in KEPT.items():
        run, asked = configurations[name].run, configurations[name].settings()
        assert run.wire_over_backward is not None, name
        found = lab.run(
            run.network,
            run.wire_over_backward,
            impl=asked.implementation,
            cap_mb=asked.caps.bucket_cap_mb,
            overlap=asked.overlap == "on",
            groups=asked.process_groups,
            sync_every=asked.accumulate,
        )
        assert found is not None, name
        assert found.predicted_s == pytest.approx(document["documents"]["prediction"]["iteration_s"], abs=1e-6)
        times = [i["end_s"] - i["start_s"] for run in document["runs"] for i in run["iterations"] if i["rank"] == 0]
        assert min(times) <= found.low_s <= found.measured_s * 1.01 <= 1.01 * max(times)
    assert len(lab.runs()) == len(KEPT)


def test_a_run_that_was_not_made_says_nothing() -> None:
    assert lab.run("nowhere", 1.0) is None
    assert lab.falls("x", None, lab.runs()[0]) is None
    assert lab.best_cap("nowhere", 1.0) is None
    assert lab.joined(None, None) is None


def test_the_page_says_by_how_much_the_steps_were_predicted_wrongly() -> None:
    off = sorted(abs(each.predicted_s / each.measured_s - 1) for each in lab.runs())
    middle = (off[(len(off) - 1) // 2] + off[len(off) // 2]) / 2
    for part in (f"Of {len(KEPT)} ", f"{middle:.1%} in the median", f"at worst within {off[-1]:.1%}"):
        assert part in lab.errors()
