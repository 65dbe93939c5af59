"""One configuration of a kept record, as a record of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ddpexec.lab.campaign.spec import Configuration
from ddpsim.common.errors import InputError
from ddpsim.common.files import read_json


def run_of(record: Path, configuration: Configuration) -> Path:
    """Return the file of a configuration's runs."""
    return record / "runs" / f"{configuration.name}.json.gz"


def alone(record: Path, one: Configuration, folder: Path) -> Path:
    """Copy what `record` has of one configuration to `folder`, and return that."""
    run = run_of(record, one)
    document: Any = read_json(run, InputError, "pack the record again")
    workload = document["workload"]
    for part in ("campaign.yaml", workload, f"runs/{run.name}"):
        (folder / part).parent.mkdir(exist_ok=True)
        shutil.copy(record / part, folder / part)
    shutil.copytree(record / "networks" / one.bench, folder / "networks" / one.bench)
    return folder
