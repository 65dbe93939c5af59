"""A wheel of the packages, installed into an empty folder, predicts there what the checkout predicts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ddpsim
from tests import forked, pages

ROOT = Path(__file__).parent.parent
PREDICT = ("predict", "--workload", "resnet50", "--topology", "dgx-1v", "--nodes", "2", "--json")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel was installed into; it is built with what is installed, without a network."""
    pytest.importorskip("hatchling", reason="the build backend is missing; `pip install -e .[dev]`")
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", wheels, ROOT)
    subprocess.run((*pip, *build), check=True)
    [wheel] = wheels.iterdir()
    assert wheel.name == f"ddpsim-{ddpsim.__version__}-py3-none-any.whl"
    subprocess.run((*pip, "install", "--no-deps", "--no-index", "--target", target, wheel), check=True)
    return target


def python(installed: Path, folder: Path, *words: str) -> str:
    """Run the interpreter in `folder` with the installed packages before any other; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, *words)
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.needs("wheel")
def test_an_installed_wheel_predicts_as_the_checkout_does(installed: Path, tmp_path: Path) -> None:
    found = python(installed, tmp_path, "-c", "import ddpsim, ddpexec; print(ddpsim.__file__, ddpexec.__file__)")
    assert all(Path(file).is_relative_to(installed) for file in found.split())
    here = json.loads(forked.command(["ddpsim", *PREDICT], tmp_path, {}).stdout)
    there = json.loads(python(installed, tmp_path, "-m", "ddpsim", *PREDICT))
    del here["provenance"], there["provenance"]
    assert there == here


@pytest.mark.needs("wheel")
def test_the_wheel_has_the_packages_and_no_study(installed: Path) -> None:
    found = {file.name for file in installed.iterdir() if not file.name.endswith(".dist-info")}
    assert found - {"bin"} == {"ddpexec", "ddpsim"}


@pytest.mark.needs("wheel")
def test_every_shipped_machine_and_workload_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    for group, folder in (("topo", "topologies"), ("workload", "traces/workloads")):
        listed = python(installed, tmp_path, "-m", "ddpsim", group, "list", "--json")
        assert all(
            f'"{file.name.split(".json")[0].removesuffix(".yaml")}"' in listed for file in (ROOT / folder).iterdir()
        )


def test_the_changelog_begins_with_this_version() -> None:
    [first, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == ddpsim.__version__


@pytest.mark.needs("wheel")
def test_an_installed_wheel_writes_reports(installed: Path, tmp_path: Path) -> None:
    plan = ("plan", "--workload", "mlp", "--topology", "dgx-1v", "--bucket-cap-mb", "5", "--report", "plan.html")
    python(installed, tmp_path, "-m", "ddpsim", *plan)
    assert pages.data((tmp_path / "plan.html").read_text())["title"] == "Plan for mlp"
