"""A configuration's prediction: made before its runs from what is there then, and never after them."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import cast

import ddpsim
from ddpexec.lab.campaign.spec import Configuration
from ddpexec.lab.campaign.stages import MeasuredNetwork
from ddpexec.running.provenance import utc
from ddpexec.running.settings import DISCARDED
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.common.errors import InputError
from ddpsim.common.files import json_text, write_whole
from ddpsim.common.options.option import build
from ddpsim.prediction.document import load_prediction
from ddpsim.prediction.first import predict_first_iterations
from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.simulation.job import Job
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload


def write_prediction(configuration: Configuration, network: MeasuredNetwork, workload: Workload, folder: Path) -> None:
    """Predict and write the document with the time and fingerprints of all that went in; skip where it is there.

    It tells the construction and the iterations that runs discard too, but where layers are left out.
    """
    path = folder / "prediction.json"
    if path.exists():
        return
    calibration = load_calibration(str(network.calibration))
    topology = load_topology(str(network.topology))
    prediction = predict(Job(workload, topology, options=options(configuration), calibration=calibration))
    stamp = {
        "written_at": utc(time.time()),
        "inputs_fingerprint": inputs_fingerprint(configuration, network, folder),
        "simulator_fingerprint": simulator_fingerprint(),
        "configuration": configuration.name,
    }
    begins = {} if prediction.options.drop else {"first": predict_first_iterations(prediction, DISCARDED).document()}
    write_whole(path, json_text({**prediction.document(), **begins, "campaign": stamp}))


def refuse_hindsight(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> None:
    """Throw away a prediction that was made from something else than what is there now.

    Raises:
        InputError: there are runs, but no prediction that was made before them from what is there now.
    """
    path, what = folder / "prediction.json", "it has run, but its prediction is gone"
    if path.exists():
        stamp = load_prediction(path).get("campaign")
        inputs = inputs_fingerprint(configuration, network, folder)
        if isinstance(stamp, dict) and stamp.get("inputs_fingerprint") == inputs:
            return
        what = "its workload, network or constants have changed since it was predicted"
    if any(folder.glob("run*/run.json")):
        raise InputError(what, place=str(folder), remedy="delete the folder to predict and run it anew")
    path.unlink(missing_ok=True)


def simulator_fingerprint() -> str:
    """Return 16 hexadecimal digits of the simulator's source."""
    package = Path(ddpsim.__file__).parent
    content = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    return hashlib.sha256(content).hexdigest()[:16]


def inputs_fingerprint(configuration: Configuration, network: MeasuredNetwork, folder: Path) -> str:
    """Return 16 hexadecimal digits of all that a prediction is made from."""
    inputs = [folder / "workload.json.gz", network.topology, network.calibration]
    content = b"".join(each.read_bytes() for each in inputs) + configuration.fingerprint().encode()
    return hashlib.sha256(content).hexdigest()[:16]


def options(configuration: Configuration) -> Options:
    """Return the configuration as the simulation takes it."""
    asked = configuration.run.options
    return cast("Options", build(Options, {**asked, "backend": "gloo", "seed": asked["seed"] + 1}))
