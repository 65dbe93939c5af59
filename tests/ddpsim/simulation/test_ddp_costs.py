import json
import math
from pathlib import Path

import pytest

from ddpsim import Calibration, load_calibration
from ddpsim.collectives.calibration import PRIORS
from ddpsim.common.errors import CalibrationError
from ddpsim.common.files import json_text
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload


def test_every_prior_has_a_source_and_a_unit():
    for backend, constants in PRIORS.items():
        names = [constant.name for constant in constants]
        assert len(set(names)) == len(names)
        assert all(name.startswith(f"{backend}.") for name in names)
        assert all(c.source and c.unit in ("s", "B/s", "B", "1") for c in constants)


def test_measured_costs_replace_priors(tmp_path):
    priors = Calibration.priors("gloo")
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
        ('{"schema": "ddpsim.plan/1"}', "is a plan, not a calibration"),
        (
            json.dumps(Calibration("ucc", {}).document()),
            "backend: unknown backend 'ucc'; expected one of gloo, ",
        ),
        ('{"schema": "ddpsim.calibration/1", "backend": "gloo"}', "constants: the key is missing\n  fitted_names"),
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


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_is_zero_without_sense_is_refused(tmp_path, backend):
    priors = Calibration.priors(backend)
    path = tmp_path / "c.json"
    for name, constant in priors.constants.items():
        for value in (0, -1.0, math.nan, math.inf, 1e300, 1e-300, True, "1", None):
            path.write_text(json.dumps(priors.with_values({name: value}, source="test").document()))
            if value == 0 and ".ddp." in name and not name.endswith(("_Bps", "_slowdown")):
                assert load_calibration(path)[name] == 0
                continue
            refusal = rf"constant '{name}' = .* out of range|value: .* is not a (finite )?number"
            with pytest.raises(CalibrationError, match=refusal) as caught:
                load_calibration(path)
            assert "constants." in str(caught.value)
        assert constant.allows(constant.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"fitted_names": names, "covariance": covariance}, message)
            for names, covariance, message in [
                (["gloo.step_s"], [], "covariance: not 1 rows of 1 numbers"),
                ([], [[0.1]], "covariance: not 0 rows of 0"),
                (["gloo.step_s"], [[0.1, 0.2]], "not 1 rows of 1"),
                (["gloo.step_s"], [["0.1"]], r"covariance\.0\.0: '0\.1' is not a number"),
                (["gloo.step_s"], [[math.nan]], r"covariance\.0\.0: nan"),
                (["gloo.step_s"], [[1e300]], r"covariance\.0\.0: 1e\+300 is not a number up to 100"),
                (["gloo.steps_s"], [[0.1]], r"fitted_names\.0: 'gloo.steps_s' is no constant"),
                ("gloo.step_s", [[0.1]], "fitted_names: 'gloo.step_s' is not a list"),
                (None, [], "fitted_names: None is not a list"),
            ]
        ),
        ({"provenance": None}, r"c\.json: provenance: None is not an object"),
    ],
)
def test_a_covariance_is_of_the_fitted_constants_and_a_provenance_an_object(tmp_path, change, message):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(Calibration.priors("gloo").document() | change))
    with pytest.raises(CalibrationError, match=message):
        load_calibration(path)


def test_every_calibration_here_is_read():
    root = Path(__file__).parents[3]
    found = [*root.glob("traces/*/networks/*/calibration.json"), *root.glob("tests/*/*/recorded/*/*/calibration.json")]
    assert len(found) > 20
    for path in found:
        load_calibration(path)


def test_a_copy_takes_half_the_memory_bandwidth_of_a_known_gpu_unless_measured():
    assert Costs.of("nccl", None, "V100").copy_Bps == pytest.approx(0.78 * 900e9 / 2)
    assert Costs.of("nccl", None, "H100").copy_Bps > 3 * Costs.of("nccl", None, "V100").copy_Bps
    priors = Calibration.priors("nccl")
    assert Costs.of("nccl", priors, "V100") == Costs.of("nccl", None, "V100")
    measured = priors.with_values({"nccl.ddp.copy_Bps": 1e11}, source="test")
    assert Costs.of("nccl", measured, "V100").copy_Bps == 1e11


def test_a_gpu_copies_as_fast_whichever_backend_sends_and_a_processor_as_gloo_says():
    nccl, gloo = (Costs.of(backend, None, "A100") for backend in ("nccl", "gloo"))
    assert (gloo.copy_Bps, gloo.copy_s) == (nccl.copy_Bps, nccl.copy_s)
    assert gloo.hook_s == Costs.of("gloo", None).hook_s
    for source in (workload(device="cpu"), single_clock(workload(device="A100"))):
        assert Costs.of("gloo", None, source.gpu) == Costs.of("gloo", None)
