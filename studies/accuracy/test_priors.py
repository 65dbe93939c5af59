"""Tables of several sites at once become constants, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.common.errors import InputError
from studies.accuracy.priors import fit_priors, main

TABLES = "tests/data/tables"
SITES = [f"{TABLES}/modal_1node_8xA100_sxm40.csv", f"{TABLES}/crusoe_2node_16xA100_ib.csv"]


def test_tables_of_two_sites_become_a_calibration_that_others_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "priors.json"
    words = [*SITES, "--topology", "dgx-a100", "--nodes", "1,2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["priors", *words])
    assert main() == 0
    said = capsys.readouterr()
    assert "fitting 24 rows of 2 tables" in said.err
    assert "documented: no row uses it" in said.out
    calibration = load_calibration(out)
    fitted = {name for name, constant in calibration.constants.items() if constant.fitted}
    assert "nccl.efficiency.net.simple" in fitted
    assert "nccl.efficiency.pcie.simple" not in fitted
    low, high = calibration.residual_low, calibration.residual_high
    assert low is not None
    assert high is not None
    assert low < 0 < high


@pytest.mark.parametrize(
    ("machines", "nodes", "words"),
    [
        (["dgx-a100"], [1, 2, 3], "nodes: 3 given for 2 tables; give one for all"),
        (["dgx-a100", "dgx-1v", "dgx-a100"], [None], "topology: 3 given for 2 tables; give one"),
        (["loopback"], [None], "loopback has gloo"),
    ],
)
def test_what_belongs_to_no_table_is_refused(machines: list[str], nodes: list[int | None], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_priors(SITES, machines, nodes)


def test_rows_that_no_constants_explain_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "bad.csv"
    rows = (f"{1 << 20 << n},{1000 * 1000 ** (n % 2)}" for n in range(8))
    table.write_text("\n".join(["# ranks: 8", "size_bytes,time_us", *rows, ""]))
    with pytest.raises(InputError, match=r"bad\.csv: row"):
        fit_priors([str(table)], ["dgx-a100"], [None])
    fit_priors([str(table)], ["dgx-a100"], [None], accepted=True)
