import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.errors import CalibrationError
from ddpsim.files import json_text
from ddpsim.simulation.costs import Costs, all_priors, load_calibration


def test_every_prior_has_a_source_and_a_unit():
    for backend, constants in all_priors().items():
        names = [constant.name for constant in constants]
        assert len(set(names)) == len(names)
        assert all(name.startswith(f"{backend}.") for name in names)
        assert all(c.source and c.unit in ("s", "B/s", "B", "1") for c in constants)


def test_measured_costs_replace_priors(tmp_path):
    priors = Calibration("gloo", {c.name: c for c in all_priors()["gloo"]})
    fitted = priors.with_values({"gloo.ddp.hook_s": 7e-6, "gloo.step_s": 1e-4}, source="fitted to a.json")
    path = tmp_path / "calibration.json"
    path.write_text(json_text(fitted.document()))
    read = load_calibration(path)
    assert read == fitted
    assert Costs.of("gloo", read).hook_s == 7e-6
    assert Costs.of("gloo", read).launch_s == Costs.of("gloo", None).launch_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"schema": "ddpsim.plan/1"}', "not a calibration file"),
        ('{"schema": "ddpsim.calibration/1", "backend": "mpi"}', "unknown backend 'mpi'"),
        ('{"schema": "ddpsim.calibration/1", "backend": "gloo"}', "malformed"),
    ],
)
def test_files_that_are_no_calibration_are_named(tmp_path, text, message):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=message) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)
    with pytest.raises(CalibrationError, match=r"missing\.json: cannot be read"):
        load_calibration(tmp_path / "missing.json")


def test_a_copy_takes_half_the_memory_bandwidth_of_a_known_gpu_unless_measured():
    assert Costs.of("nccl", None, "V100").copy_Bps == pytest.approx(0.78 * 900e9 / 2)
    assert Costs.of("nccl", None, "H100").copy_Bps > 3 * Costs.of("nccl", None, "V100").copy_Bps
    priors = Calibration("nccl", {c.name: c for c in all_priors()["nccl"]})
    assert Costs.of("nccl", priors, "V100") == Costs.of("nccl", None, "V100")
    measured = priors.with_values({"nccl.ddp.copy_Bps": 1e11}, source="test")
    assert Costs.of("nccl", measured, "V100").copy_Bps == 1e11
