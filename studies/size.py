"""How large the project is: `python -m studies.size [--json]`.

Lines of code are those that have a token which is no comment and no docstring; of tests, of the simulation and of the
executor (`ddpexec/ddp` and `ddpexec/schedules`) all lines are counted, as `wc -l` does, and of documentation words, as
`wc -w` does. Floors are the layers of the simulation's import contract. Parameters are many where a function takes more
than six, `self` and `cls` apart; those of `DistributedDataParallel` are torch's own and not counted. What is on the way
of one `predict` without a band is every function of `ddpsim` that ran in it, from reading workload and machine to the
prediction, in a process that had imported all of it.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

from studies.command import parser

ROOT = Path(__file__).resolve().parents[1]
EXECUTOR = "ddpexec/ddp", "ddpexec/schedules"
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


def sizes() -> dict[str, int]:
    """Return the lines of code of product and studies, the lines of tests, and the words of documentation."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    product = [*_modules("ddpsim"), *_modules("ddpexec")]
    code = {name: _sum(code_lines(path.read_text()) for path in _modules(name)) for name in ("ddpsim", "ddpexec")}
    return {
        **{f"{name}_code_lines": lines for name, lines in code.items()},
        "product_code_lines": sum(code.values()),
        "executor_lines": _sum(path.read_text().count("\n") for part in EXECUTOR for path in _modules(part)),
        "tests_lines": _sum(path.read_text().count("\n") for path in _modules("tests")),
        "studies_lines": _sum(path.read_text().count("\n") for path in _modules("studies")),
        "documentation_words": _sum(len(path.read_text().split()) for path in pages),
        "functions_of_many_parameters": _sum(len(long_signatures(path.read_text())) for path in product),
        **simulation(),
        **on_the_way(),
    }


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
    """Return how many functions of `ddpsim`, in how many files, run in one `predict` without a band."""
    from ddpsim import load_topology, load_workload, predict

    def ask() -> None:
        predict(load_workload("resnet50"), load_topology("dgx-1v"), band=False)

    ran: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            ran.add(frame.f_code)

    ask()
    sys.setprofile(note)
    try:
        ask()
    finally:
        sys.setprofile(None)
    ours = [code for code in ran if code.co_filename.startswith(str(ROOT / "ddpsim")) and code.co_name[0] != "<"]
    return {"functions_of_one_predict": len(ours), "files_of_one_predict": len({code.co_filename for code in ours})}


def _modules(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)


if __name__ == "__main__":
    asked = parser(__doc__)
    asked.add_argument("--json", action="store_true", help="print one JSON object")
    given = asked.parse_args()
    found = sizes()
    print(json.dumps(found) if given.json else "\n".join(f"{n:8,} {what}" for what, n in found.items()))
