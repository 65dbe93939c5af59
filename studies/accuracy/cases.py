"""The cases of the accuracy page: each returns its rows as relative errors, predicted over measured minus one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.calibrating.calibrate import fit_samples, with_residuals, with_versions
from ddpsim.calibrating.fitting import Vector
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.bands import band_factors
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.curve import CurveTransport
from studies.accuracy import baselines
from studies.accuracy.documented import make_documented_calibration
from studies.accuracy.pooled import Pool, fit_pooled, thin_rows
from studies.accuracy.residuals import constants
from studies.accuracy.systems import System

MIB = 1 << 20
_FEWEST_ROWS = 5
_VTRAIN_MIB = (1, 2, 3, 5, 8, 13, 20, 32)
_ABCI_V = ("abci_V_v100_4gpu", "abci_V_v100_8gpu")
_ABCI_A = ("abci_A_a100_8gpu", "abci_A_a100_16gpu")
_MORE_NODES = (
    (_ABCI_V, "abci_V_v100_16gpu"),
    (_ABCI_A, "abci_A_a100_32gpu"),
    (("deepops_2xDGXA100_ib",), "deepops_4xDGXA100_ib"),
    *((_ABCI_V, f"abci_V_v100_{ranks}gpu") for ranks in (32, 64, 128)),
    *((_ABCI_A, f"abci_A_a100_{ranks}gpu") for ranks in (64, 128)),
)


@dataclass(frozen=True)
class Errors:
    """Relative errors of the predictors of one system, a row each.

    Attributes:
        columns: predictor to errors; the first is ours.
        doubts: how unsure ours says it is, where measured rows correct the model.
        band: factors from ours to the ends of its band, a row each, where they do not.
        repeatability: of the whole table (`MeasuredTable.repeatability`).
        cited: whether the table was found after the model had been built on the others.
    """

    system: str
    sizes: tuple[int, ...]
    columns: Mapping[str, Vector]
    doubts: Vector | None = None
    band: Vector | None = None
    repeatability: float | None = None
    cited: bool = False


def site_priors(sites: Iterable[str]) -> dict[str, Calibration]:
    """Return for each site the documented constants fitted without it, free to be fitted again: one of eight fits."""
    folds = constants()
    return {site: _free(folds[site], make_documented_calibration()) for site in dict.fromkeys(sites)}


def without(site: str, samples: Mapping[System, Sample]) -> Calibration:
    """Return the documented constants fitted to every table but those of `site`, free to be fitted again."""
    others = [thin_rows(sample) for system, sample in samples.items() if system.site != site]
    return _free(fit_pooled(others).calibration(), make_documented_calibration())


def all_sites(samples: Mapping[System, Sample]) -> Pool:
    """Return the documented constants fitted to every site's tables."""
    return fit_pooled([thin_rows(sample) for sample in samples.values()])


def uncalibrated(samples: Mapping[System, Sample], priors: Mapping[str, Calibration]) -> list[Errors]:
    """Return errors at 1 MiB and more from the topology and other sites' constants."""
    rows = []
    for system, sample in samples.items():
        large = sample.select_rows([row for row, size in enumerate(sample.sizes) if size >= MIB])
        ours = large.predict(priors[system.site])
        columns = {"ddpsim": ours, "NCCL's model": baselines.nccl_model(large)}
        rows.append(_errors(system, large, {**columns, "torch comm_analysis": baselines.comm_analysis(large)}))
    return rows


def every_fourth(samples: Mapping[System, Sample], priors: Mapping[str, Calibration], nth: int = 4) -> list[Errors]:
    """Return errors on the rows left out of a calibration on rows 0, 4, 8, ..., or on every `nth`."""
    rows = []
    for system, sample in samples.items():
        if system.site == "vtrain" or len(sample.sizes) < _FEWEST_ROWS:
            continue
        numbers = range(len(sample.sizes))
        known, asked = (sample.select_rows([n for n in numbers if (n % nth == 0) is kept]) for kept in (True, False))
        calibration, version = _fitted([known], priors[system.site])
        transport = asked.with_version(version).transport(calibration)
        assert isinstance(transport, CurveTransport)
        ours = np.array([transport.allreduce_s(size) for size in asked.sizes])
        columns = {"ddpsim": ours, "log-log": baselines.log_log(known, asked)}
        errors = _errors(system, asked, {**columns, "alpha-beta": baselines.alpha_beta(known, asked)})
        rows.append(replace(errors, doubts=np.array([transport.doubt(size) for size in asked.sizes])))
    return rows


def eight_rows(samples: Mapping[System, Sample], priors: Mapping[str, Calibration]) -> list[Errors]:
    """Return errors up to 32 MiB on vTrain's tables, calibrated on eight rows; alpha-beta saw every row."""
    rows = []
    for system, sample in samples.items():
        if system.site != "vtrain":
            continue
        known = sample.select_rows([n for n, size in enumerate(sample.sizes) if size in [m * MIB for m in _VTRAIN_MIB]])
        asked = sample.select_rows([n for n, s in enumerate(sample.sizes) if s <= 32 * MIB and s not in known.sizes])
        ours = _calibrated([known], [asked], priors[system.site])
        rows.append(_errors(system, asked, {"ddpsim": ours, "alpha-beta": baselines.alpha_beta(sample, asked)}))
    return rows


def more_nodes(
    samples: Mapping[System, Sample], priors: Mapping[str, Calibration], only: Sequence[str] = ()
) -> list[Errors]:
    """Return errors at 1 MiB and more on a node count above those calibrated on."""
    by_name = {system.name: (system, sample) for system, sample in samples.items()}
    rows = []
    for known_names, asked_name in [each for each in _MORE_NODES if not only or each[1] in only]:
        system, sample = by_name[asked_name]
        asked = sample.select_rows([n for n, size in enumerate(sample.sizes) if size >= MIB])
        known = [by_name[name][1] for name in known_names]
        calibration, version = _fitted(known, priors[system.site])
        ours = asked.with_version(version).predict(calibration)
        factors = band_factors(
            asked.placement,
            with_residuals(with_versions(known, calibration), priors[system.site], calibration),
            asked.sizes,
        )
        rows.append(
            replace(
                _errors(system, asked, {"ddpsim": ours, "constant busbw": baselines.constant_busbw(known[-1], asked)}),
                band=np.array(factors),
            )
        )
    return rows


def _calibrated(known: list[Sample], asked: list[Sample], priors: Calibration) -> Vector:
    calibration, version = _fitted(known, priors)
    return np.concatenate([sample.with_version(version).predict(calibration) for sample in asked])


def _fitted(known: list[Sample], priors: Calibration) -> tuple[Calibration, int]:
    """Return the calibration and the NCCL version it takes."""
    versioned = with_versions(known, priors)
    return fit_samples(versioned, priors)[1], versioned[0].version


def _errors(system: System, sample: Sample, predicted: Mapping[str, Vector]) -> Errors:
    columns = {key: times / sample.measured - 1 for key, times in predicted.items()}
    return Errors(system.name, sample.sizes, columns, repeatability=sample.table.repeatability, cited=system.cited)


def _free(fitted: Calibration, start: Calibration) -> Calibration:
    """Return `fitted` with its constants free again, as loosely as the shipped priors are."""
    stds = {name: constant.log_std for name, constant in Calibration.priors("nccl").constants.items()}
    constants = {
        name: replace(constant, log_std=stds[name] if start.constants[name].log_std is not None else None)
        for name, constant in fitted.constants.items()
    }
    return replace(fitted, constants=constants, fitted_names=(), covariance=())
