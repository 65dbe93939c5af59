"""`ddpsim priors`: tables of several sites at once, and what it refuses."""

from __future__ import annotations

import pytest

from ddpsim.collectives.calibration_file import load_calibration

TABLES = "tests/data/tables"
SITES = [f"{TABLES}/modal_1node_8xA100_sxm40.csv", f"{TABLES}/crusoe_2node_16xA100_ib.csv"]
MACHINES = ["--topology", "dgx-a100", "--nodes", "1,2"]


def test_tables_of_two_sites_become_a_calibration_that_others_load(tmp_path, ddpsim):
    out = tmp_path / "priors.json"
    made = ddpsim("priors", *SITES, *MACHINES, "-o", out, "--json")
    found = made.document
    assert found["fit_error"] < 0.15
    assert "nccl.efficiency.pcie.simple" in found["unused"]
    assert "fitting 24 rows of 2 tables" in made.err
    calibration = load_calibration(out)
    fitted = {name for name, constant in calibration.constants.items() if constant.fitted}
    assert "nccl.efficiency.net.simple" in fitted
    assert calibration.residual_low < 0 < calibration.residual_high


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SITES, "--topology", "dgx-a100", "--nodes", "1,2,3"], "--nodes: 3 given for 2 tables; give one for all"),
        ([SITES[0], "--topology", "dgx-a100", "--topology", "dgx-1v"], "--topology: 2 given for 1 table; give one"),
        ([SITES[0], "--topology", "loopback"], "--topology: loopback has no GPUs"),
    ],
)
def test_what_belongs_to_no_table_is_refused(arguments, words, ddpsim):
    ddpsim("priors", *arguments).refused(words)


def test_rows_that_no_constants_explain_are_refused_before_anything_is_written(tmp_path, ddpsim):
    table, out = tmp_path / "bad.csv", tmp_path / "priors.json"
    rows = (f"{1 << 20 << n},{1000 * 1000 ** (n % 2)}" for n in range(8))
    table.write_text("\n".join(["# ranks: 8", "size_bytes,time_us", *rows, ""]))
    words = ["priors", table, "--topology", "dgx-a100", "-o", out]
    refused = ddpsim(*words)
    assert refused.code == 2
    assert "bad.csv: row" in refused.err
    assert "--accept-misfit" in refused.err
    assert not out.exists()
    assert "warning: rows are" in ddpsim(*words, "--accept-misfit").err
    assert out.exists()
