"""What the packages offer by their own names, and that nothing is imported before it is asked for."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ddpsim

PACKAGES = ("ddpsim", "ddpexec")
HEAVY = ("numpy", "networkx", "simpy", "pydantic", "yaml", "matplotlib", "jinja2", "torch")


def package(name: str) -> ModuleType:
    if name == "ddpexec":
        pytest.importorskip("torch", reason="needs the extra `exec`")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_is_there_is_what_types_are_told_of_it_and_is_listed(name: str) -> None:
    found = package(name)
    file = Path(__file__).parents[1] / name / "__init__.py"
    for_types = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If))
    inside = [node for each in for_types for node in each.body if isinstance(node, ast.ImportFrom) and node.module]
    told = {alias.name: node.module for node in inside for alias in node.names if node.module.startswith(f"{name}.")}
    assert set(told) == {each for each in dir(found) if not each.startswith("__")}
    for each, module in told.items():
        assert getattr(found, each) is getattr(importlib.import_module(module), each)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'palm'"):
        _ = found.palm


def test_a_star_takes_the_public_names() -> None:
    taken: dict[str, object] = {}
    exec("from ddpsim import *", taken)
    assert taken.keys() - {"__builtins__"} == {each for each in dir(ddpsim) if not each.startswith("__")}


@pytest.mark.parametrize("name", PACKAGES)
def test_help_fits_on_two_screens_and_has_every_name_with_arguments_that_it_takes(name: str) -> None:
    found = package(name)
    shown = pydoc.render_doc(found, renderer=pydoc.plaintext)
    assert shown.count("\n") < 110
    names = [each for each in dir(found) if not each.startswith("__")]
    assert [each for each in names if not re.search(rf"\b{each}\b", found.__doc__ or "")] == []
    calls = re.findall(r"^    (\w+)\((.*?)\)", found.__doc__ or "", re.MULTILINE)
    assert calls
    for each, arguments in calls:
        given = [argument.rstrip("=") for argument in arguments.split(", ") if argument != "..."]
        assert set(given) <= set(inspect.signature(getattr(found, each)).parameters), each


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_loads_nothing_heavy(name: str) -> None:
    program = f"import sys, {name}; print([each for each in {HEAVY} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_notebook_plans_from_the_packages_names() -> None:
    from ddpsim import BucketCaps, load_topology, load_workload, plan

    report = plan(load_workload("mlp"), [load_topology("dgx-1v")], caps=[BucketCaps(bucket_cap_mb=10)])
    assert report.best.chosen.nodes == 1


def test_signatures_can_be_read_and_say_that_names_may_be_given() -> None:
    shown = str(inspect.signature(ddpsim.plan))
    assert "workload: 'Workload | str', topologies: 'Sequence[Topology | str] | Topology | str'" in shown
    assert "nodes: 'Sequence[int] | int | None'" in shown
    for kind in (ddpsim.BucketCaps, ddpsim.Options):
        assert "Option(" not in str(inspect.signature(kind))
    assert str(inspect.signature(ddpsim.BucketCaps)).startswith("(bucket_cap_mb: 'float | None' = None, ")


def test_a_class_has_a_name_of_its_own_in_the_product() -> None:
    root = Path(__file__).parents[1]
    modules = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{module.relative_to(root)}:{node.lineno}")
    assert len(places) > 500
    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def test_names_of_earlier_versions_are_the_same_classes() -> None:
    from ddpsim.schedules import points, setup

    assert points.Kind is points.PointKind
    assert setup.Setup is setup.SchemeInputs
