"""How large the project is: `python -m studies.size [--check | --write | --moved A B | --raise ROOM N WHY] [--json]`.

Lines of code are those that have a token which is no comment and no docstring; of tests, of the simulation and of the
executor (`ddpexec/ddp`) all lines are counted, as `wc -l` does, and of documentation words, as
`wc -w` does. Records are classes that are there for their fields: dataclasses, named tuples, typed dictionaries and
pydantic models. Floors are the layers of the simulation's import contract. Parameters are many where a function takes
more than six, `self` and `cls` apart; those of `DistributedDataParallel` are torch's own and not counted. What is on
the way of one `predict` is every function of `ddpsim` that ran in it, from reading workload and machine to the
prediction, in a process that had imported all of it, and every type of which it made an object.

`--check` holds each room to the budgets of `studies/size.toml`, and exits 1 where one is exceeded. `--write` lowers
them to what is there. `--moved A B` gives room B what A has to spare and B is short of, after files moved. `--raise
ROOM[:FIGURE] N WHY` allows N more, lines of code where no figure is named, and keeps why.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FrameType

from studies.budgets import Budgets, Figures, total
from studies.command import parser

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "studies/size.toml"
PACKAGES = "ddpsim", "ddpexec"
PREDICT = ("predict", "--workload", "resnet50", "--topology", "dgx-1v")
"""The command whose functions and types are counted by room: with its band, as a user asks for it."""
EXECUTOR = ("ddpexec/ddp",)
_EMPTY = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Return the lines of code in a module's text, without docstrings, comments and blanks.

    >>> code_lines(chr(34) * 3 + "Doc." + chr(34) * 3 + "\\n\\nx = (1,\\n     2)  # two\\n# none\\n")
    2
    """
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        # A string that stands by itself, as a docstring or under a constant, is documentation.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in _EMPTY for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - told)


def sizes() -> dict[str, float]:
    """Return the lines of code of product and studies, the lines of tests, and the words of documentation."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    product = [path.read_text() for package in PACKAGES for path in _modules(package)]
    code = {name: _sum(code_lines(path.read_text()) for path in _modules(name)) for name in PACKAGES}
    lines = [line.strip() for text in product for line in text.splitlines()]
    return {
        **{f"{name}_code_lines": lines for name, lines in code.items()},
        "product_code_lines": sum(code.values()),
        "product_lines": len(lines),
        "share_of_imports": round(_sum(map(import_lines, product)) / len(lines), 4),
        "share_of_comments": round(sum(line.startswith("#") for line in lines) / len(lines), 4),
        "executor_lines": _sum(path.read_text().count("\n") for part in EXECUTOR for path in _modules(part)),
        "tests_lines": _sum(path.read_text().count("\n") for path in _modules("tests")),
        "studies_lines": _sum(path.read_text().count("\n") for path in _modules("studies")),
        "documentation_words": _sum(len(path.read_text().split()) for path in pages),
        "functions_of_many_parameters": _sum(len(long_signatures(text)) for text in product),
        **named_outside(),
        **simulation(),
        **on_the_way(),
    }


RANKS_OF_THEIR_OWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "servers": (
        ("ddpsim/collectives/servers.py", "ddpsim/schedules/servers.py", "ddpsim/schedules/parallax.py",
         "ddpsim/simulation/parameter_servers.py"),
        ("Servers", "SERVERS", "TRAINERS", "ServerPlaces", "ServerLinks", "ServerConnection", "staleness", "servers",
         "hosts", "trainers"),
    ),
    "pipelines": (
        ("ddpsim/cli/pipeline.py", "ddpsim/simulation/jobs/pipeline.py", "ddpsim/simulation/jobs/stages.py",
         "ddpsim/planning/pipeline.py", "ddpsim/schedules/pipeline.py", "ddpsim/simulation/stage_links.py"),
        ("Pipeline", "pipeline", "StageLinks", "StageWork", "ModelPart", "StagePart", "ONLY_STAGE", "parts_of",
         "pace_of_part", "plan_in_model", "micro_batches", "stages_per_rank", "works_of", "passes_of", "beside_stages",
         "part_of_place"),
    ),
    "devices": (
        ("ddpsim/simulation/jobs/device_split.py", "ddpsim/workload/devices.py"),
        ("DevicePart", "DeviceTurns", "device_numbers", "buffer_devices", "part_shares", "of_device", "on_device"),
    ),
}  # fmt: skip
"""Ranks and phases that a scheme brings: the files that are theirs, and the identifiers by which others name them."""


def named_outside() -> dict[str, int]:
    """Return in how many files, beside their own, servers, pipelines and several devices a rank are named."""
    named = {str(path.relative_to(ROOT)): set(_identifiers(ast.parse(path.read_text()))) for path in _modules("ddpsim")}
    return {
        f"files_that_name_{kind}": _sum(not known.isdisjoint(names) for path, known in named.items() if path not in own)
        for kind, (own, names) in RANKS_OF_THEIR_OWN.items()
    }


def _identifiers(tree: ast.Module) -> Iterator[str]:
    """Yield what a module calls by name: variables, attributes, arguments, imports, functions and classes."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str):
                yield name


def rooms() -> dict[str, Figures]:
    """Return the figures of each room that have a budget."""
    files: dict[str, list[Path]] = {}
    for package in PACKAGES:
        for path in _modules(package):
            files.setdefault(room_of(path), []).append(path)
    trees = {path: ast.parse(path.read_text()) for paths in files.values() for path in paths}
    models = pydantic_models(trees.values())
    functions, types = functions_and_types(predict_with_band)
    ran = Counter(room_of(Path(name)) for name in functions)
    made = Counter(room_of(Path(name)) for name in types)
    return {
        room: {
            "code_lines": _sum(code_lines(path.read_text()) for path in paths),
            "files": len(paths),
            "functions": _sum(count_functions(trees[path]) for path in paths),
            "records": _sum(len(records(trees[path], models)) for path in paths),
            "predict_functions": ran[room],
            "predict_types": made[room],
        }
        for room, paths in sorted(files.items())
    }


def room_of(path: Path) -> str:
    """Return the room of a module: its package's folder, or the package for what lies in no folder."""
    package, *rest = path.relative_to(ROOT).parts
    return package if len(rest) == 1 else f"{package}/{rest[0]}"


def count_functions(tree: ast.Module) -> int:
    """Return how many functions and methods a module has, also those inside others."""
    return sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))


def records(tree: ast.Module, models: frozenset[str]) -> list[str]:
    """Return the classes of a module that are there for their fields; `models` are the names of pydantic's.

    >>> text = "@dataclass(frozen=True)\\nclass A: x: int\\nclass B(NamedTuple): y: int\\nclass C: ..."
    >>> records(ast.parse(text), frozenset())
    ['A', 'B']
    """
    kinds = {"NamedTuple", "TypedDict", "BaseModel"} | models
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and ("dataclass" in map(_name, node.decorator_list) or kinds & set(map(_name, node.bases)))
    ]


def pydantic_models(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of the classes that derive from pydantic's model, by way of each other too."""
    bases = {
        node.name: {_name(base) for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"BaseModel"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return frozenset(found)


def _name(node: ast.expr) -> str:
    """Return the last word of a decorator's or a base's name, its arguments apart."""
    if isinstance(node, ast.Call | ast.Subscript):
        return _name(node.func if isinstance(node, ast.Call) else node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def import_lines(text: str) -> int:
    """Return how many lines of a module import something.

    >>> import_lines("import a\\nfrom b import (\\n    c,\\n)\\nx = 1\\n")
    4
    """
    imports = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def long_signatures(text: str) -> list[str]:
    """Return the functions of a module that take more than six parameters, torch's own signature apart.

    >>> long_signatures("class A:\\n    def f(self, a, b, c, d, e, *f, g): ...\\ndef g(a, b, c, d, e, f): ...\\n")
    ['f']
    """
    tree = ast.parse(text)
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in _TORCHS)
    torchs = {each for found in classes for each in found.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in torchs:
            given = node.args
            named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            extra = [each for each in (given.vararg, given.kwarg) if each is not None]
            if len([name for name in named if name not in ("self", "cls")]) + len(extra) > _MOST_PARAMETERS:
                found.append(node.name)
    return found


_MOST_PARAMETERS = 6
_TORCHS = ("DistributedDataParallel",)
"""Classes whose signatures are torch's own."""


def simulation() -> dict[str, int]:
    """Return how many files, floors and lines the simulation has."""
    files = _modules("ddpsim/simulation")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == ["ddpsim.simulation"]]
    lines = _sum(path.read_text().count("\n") for path in files)
    return {"simulation_files": len(files), "simulation_floors": len(layers), "simulation_lines": lines}


def on_the_way() -> dict[str, int]:
    """Return how many functions and types of ours, in how many files, one `predict` runs, without a band and with."""
    found = {}
    for name, ask in (("one_predict", predict_without_band), ("one_predict_with_band", predict_with_band)):
        functions, types = functions_and_types(ask)
        found[f"functions_of_{name}"] = len(functions)
        found[f"files_of_{name}"] = len(set(functions))
        found[f"types_of_{name}"] = len(types)
    return found


def predict_without_band() -> None:
    """Predict from Python."""
    from ddpsim import load_topology, load_workload, predict

    predict(load_workload("resnet50"), load_topology("dgx-1v"), band=False)


def predict_with_band() -> None:
    """Predict from the command line, which tells the band."""
    from ddpsim.cli.app import run

    with redirect_stdout(io.StringIO()):
        run(list(PREDICT))


@functools.cache
def functions_and_types(ask: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Return the file of each function of `ddpsim` that `ask` runs the second time, and of each type it makes."""
    ask()
    ran: set[CodeType] = set()
    made: set[type] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            ran.add(frame.f_code)
            if frame.f_code.co_name in ("__init__", "__new__"):
                first = next(iter(frame.f_locals.values()))
                made.add(first if isinstance(first, type) else type(first))

    sys.setprofile(note)
    try:
        ask()
    finally:
        sys.setprofile(None)
    inside = str(ROOT / "ddpsim")
    functions = [code.co_filename for code in ran if code.co_filename.startswith(inside) and code.co_name[0] != "<"]
    modules = (sys.modules[each.__module__] for each in made if each.__module__.partition(".")[0] == "ddpsim")
    return functions, [str(module.__file__) for module in modules]


def lines_of(figures: dict[str, Figures]) -> Iterator[str]:
    """Yield a table of the rooms, and of all of them."""
    names = list(next(iter(figures.values())))
    yield f"{'':24}" + "".join(f"{name.replace('_', ' '):>19}" for name in names)
    for room, each in {**figures, "all": total(figures)}.items():
        yield f"{room:24}" + "".join(f"{each[name]:19,}" for name in names)


def _modules(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)


def main() -> int:
    """Print sizes, or hold and change budgets; return the exit code."""
    asked = parser(__doc__)
    asked.add_argument("--json", action="store_true", help="print one JSON object")
    asked.add_argument("--check", action="store_true", help="hold each room to its budget")
    asked.add_argument("--write", action="store_true", help="lower budgets to what is there")
    asked.add_argument("--moved", nargs=2, metavar=("A", "B"), help="what A has to spare goes to B")
    asked.add_argument("--raise", nargs=3, dest="raised", metavar=("ROOM[:FIGURE]", "N", "WHY"))
    given = asked.parse_args()
    if not (given.check or given.write or given.moved or given.raised):
        found = sizes()
        print(json.dumps(found) if given.json else "\n".join(f"{_shown(n):>8} {what}" for what, n in found.items()))
        return 0
    here = rooms()
    budgets = Budgets.read(BUDGETS) if BUDGETS.exists() else Budgets.begin(here)
    if given.moved:
        source, target = given.moved
        budgets.move(source, target, here)
    if given.raised:
        place, number, why = given.raised
        room, _, figure = place.partition(":")
        budgets.raise_(room, figure or "code_lines", int(number), why)
    if given.write:
        budgets.lower(here)
    if given.write or given.moved or given.raised:
        budgets.write(BUDGETS)
    print(json.dumps(here) if given.json else "\n".join(lines_of(here)))
    excesses = list(budgets.excesses(here))
    for line in excesses:
        print(line, file=sys.stderr)
    if excesses:
        print("make it smaller, or see `python -m studies.size --help`: --moved, --raise", file=sys.stderr)
    return int(bool(excesses))


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.1%}"


if __name__ == "__main__":
    sys.exit(main())
