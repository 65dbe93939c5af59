"""Imports of both packages: no module can reach itself, whatever is imported only for type checkers included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules among `known` that a file names in an import, wherever in the file that stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.add(inner if inner in known else str(node.module))
    return found & set(known)


def graph_of(folder: Path) -> dict[str, set[str]]:
    known = modules(folder)
    # The package's own page of names imports nothing before a name is asked for.
    inner = {name: path for name, path in known.items() if name != folder.name}
    return {name: imported(path, inner) - {name} for name, path in inner.items()}


@pytest.mark.parametrize("package", ["ddpsim", "ddpexec"])
def test_no_module_can_reach_itself(package):
    try:
        TopologicalSorter(graph_of(ROOT / package)).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_an_import_for_type_checkers_closes_a_circle_too(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "one.py").write_text("from small.two import name\n")
    (folder / "two.py").write_text("if TYPE_CHECKING:\n    from small import one\n")
    assert graph_of(folder) == {"small.one": {"small.two"}, "small.two": {"small.one"}}


@pytest.mark.parametrize(("package", "most"), [("ddpsim", 10), ("ddpexec", 8)])
def test_few_files_lie_outside_the_rooms(package, most):
    assert len(list((ROOT / package).glob("*.py"))) <= most


def test_no_test_imports_a_study():
    """The record of all answers trains what a study draws; no test needs it."""
    studies, record = modules(ROOT / "studies"), ROOT / "tests" / "unchanged" / "executor.py"
    assert studies
    assert imported(record, studies)
    for path in {*(ROOT / "tests").rglob("*.py")} - {record}:
        assert not imported(path, studies), path
