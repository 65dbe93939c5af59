"""A command imports what it needs: `--help` no library of the core, a prediction the simulation's."""

import subprocess
import sys

from studies.benchmarks.imports import imported


def test_help_imports_no_library_of_the_core() -> None:
    libraries = imported("--help")["libraries"]
    assert set(libraries).isdisjoint({"numpy", "networkx", "simpy", "pydantic", "yaml", "matplotlib"})  # type: ignore[call-overload]


def test_a_machine_is_shown_without_the_simulation() -> None:
    shown, predicted = (
        imported(command) for command in ("topo show dgx-1v", "predict --workload mlp --topology dgx-1v")
    )
    assert "simpy" not in shown["libraries"]  # type: ignore[operator]
    assert "simpy" in predicted["libraries"]  # type: ignore[operator]
    assert shown["modules"] < predicted["modules"]  # type: ignore[operator]


def test_what_reads_a_job_beside_is_imported_where_there_is_one() -> None:
    asked = "import sys, ddpsim.simulation; print('ddpsim.jobs.beside_file' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
