"""A command imports what it needs: `--help` no library of the core, a prediction the simulation's."""

import subprocess
import sys

from studies.benchmarks.imports import imported


def test_help_imports_no_library_of_the_core() -> None:
    libraries = imported("--help")["libraries"]
    assert set(libraries).isdisjoint({"numpy", "networkx", "simpy", "pydantic", "yaml", "matplotlib"})


def test_a_machine_is_shown_without_the_simulation() -> None:
    shown, predicted = (
        imported(command) for command in ("topo show dgx-1v", "predict --workload mlp --topology dgx-1v")
    )
    assert "simpy" not in shown["libraries"]
    assert "simpy" in predicted["libraries"]
    assert shown["modules"] < predicted["modules"]


def test_what_reads_a_job_beside_is_imported_where_there_is_one() -> None:
    asked = "import sys, ddpsim.simulation; print('ddpsim.simulation.jobs.beside_file' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_prediction_imports_no_other_library_than_its_own() -> None:
    program = (
        "import sys; from ddpsim.cli.app import run; "
        "run(['predict', '--workload', 'mlp', '--topology', 'dgx-1v']); "
        "print([name for name in sys.modules if name.startswith('ddpsim.collectives.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1]
    assert "'ddpsim.collectives.nccl.transport'" in names
    for name in ("gloo.transport", "mpi.transport", "calibration_file"):
        assert f"'ddpsim.collectives.{name}'" not in names


def test_a_command_looks_for_no_plugins_of_pydantic() -> None:
    program = (
        "import sys, atexit; sys.argv = ['ddpsim', 'predict', '--workload', 'mlp', '--topology', 'dgx-1v']; "
        "import pydantic.plugin._loader as loader; atexit.register(lambda: print(loader._plugins)); "
        "from ddpsim.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "None"
