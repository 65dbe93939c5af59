"""Whatever is wrong with a file, a command exits with 2 and one message that names the file: never a traceback."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.profile import examples

HERE = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")
HUGE = 10**400
"""Larger than any float, and JSON all the same."""
WRONG: list[object] = [None, "x", "", -1, 0, 1.5, True, [], {}, [None], {"a": 1}, 1e300, HUGE, "12:30", "5GB"]
relaxed = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    print_blob=True,
)


def places(document: object, path: tuple = ()) -> list[tuple]:
    """Return the path of every value in a JSON document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def broken(document: object, path: tuple, value: object, *, remove: bool) -> object:
    """Return a copy with the value at `path` replaced or removed."""
    if not path:
        return value
    copy = json.loads(json.dumps(document))
    holder = copy
    for step in path[:-1]:
        holder = holder[step]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return copy


def hold(result, name: str) -> None:  # type: ignore[no-untyped-def]
    """Check for success, or for one message that names the file."""
    if result.code == 2:
        assert name in result.err
        assert result.out == ""
        assert "Traceback" not in result.err
        assert "error: " in result.err
    else:
        assert result.code == 0


changes = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(WRONG), st.booleans())


def change(document: object, drawn: tuple[float, object, bool]) -> object:
    """Return `document` with one value changed or removed, at a place picked by share."""
    share, value, remove = drawn
    found = places(document)
    return broken(document, found[int(share * len(found))], value, remove=remove)


@relaxed
@example(drawn=(0.4375, "x", False))  # a parameter on another device
@given(drawn=changes)
def test_workloads(ddpsim: Callable, tiny: Path, tmp_path: Path, drawn: tuple) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(change(json.loads(tiny.read_text()), drawn)))
    hold(ddpsim("predict", "--workload", file, *HERE, "--json"), "broken.json")


@relaxed
@given(drawn=changes)
def test_plans(ddpsim: Callable, tiny: Path, tmp_path: Path, drawn: tuple) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "broken.json"
    ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb", "2", "-o", plan)
    file.write_text(json.dumps(change(json.loads(plan.read_text()), drawn)))
    hold(ddpsim("predict", "--workload", tiny, *HERE, "--plan", file, "--json"), "broken.json")


@relaxed
@given(drawn=changes)
def test_calibrations(ddpsim: Callable, tiny: Path, tmp_path: Path, drawn: tuple) -> None:
    table, calibration, file = (tmp_path / name for name in ("table.csv", "calibration.json", "broken.json"))
    if not calibration.exists():
        table.write_text(
            "# ranks: 2\nsize_bytes,time_us\n" + "".join(f"{n},{50 + n / 900}\n" for n in (1024, 65536, 1 << 20))
        )
        assert ddpsim("calibrate", table, "--topology", "loopback", "-o", calibration).code == 0
    file.write_text(json.dumps(change(json.loads(calibration.read_text()), drawn)))
    hold(ddpsim("predict", "--workload", tiny, *HERE, "--calibration", file, "--json"), "broken.json")


@pytest.fixture
def measured(ddpsim: Callable, tiny: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A prediction and its own trace."""
    predicted, folder = tmp_path / "predicted.json", tmp_path / "measured"
    predicted.write_text(ddpsim("predict", "--workload", tiny, *HERE, "--trace", folder, "--json").out)
    return predicted, folder


@relaxed
@given(drawn=changes)
def test_predictions(ddpsim: Callable, measured: tuple[Path, Path], tmp_path: Path, drawn: tuple) -> None:
    predicted, folder = measured
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(change(json.loads(predicted.read_text()), drawn)))
    result = ddpsim("validate", file, folder, "--json")
    hold(result, "broken.json" if "broken.json" in result.err else "measured")


@relaxed
@given(drawn=changes)
def test_traces(ddpsim: Callable, measured: tuple[Path, Path], tmp_path: Path, drawn: tuple) -> None:
    predicted, folder = measured
    whole = json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))
    other = tmp_path / "other"
    other.mkdir(exist_ok=True)
    (other / "rank0.json.gz").write_bytes(gzip.compress(json.dumps(change(whole, drawn)).encode()))
    hold(ddpsim("validate", predicted, other, "--json"), "other")


@relaxed
@given(drawn=changes, machine=st.sampled_from(["dgx-1v", "dgx-a100", "lab-trunk", "loopback"]))
def test_machines(ddpsim: Callable, tmp_path: Path, drawn: tuple, machine: str) -> None:
    file = tmp_path / "broken.yaml"
    source = Path(__file__).parents[3] / "topologies" / f"{machine}.yaml"
    file.write_text(yaml.safe_dump(change(yaml.safe_load(source.read_text()), drawn)))
    result = ddpsim("allreduce", "--topology", file, "-b", "1M", "-e", "1M", "--json")
    hold(result, "broken.yaml" if "broken.yaml" in result.err else machine)


@pytest.mark.parametrize(
    "path", [("forward", "host_s", 0), ("batch_size",), ("parameters", 0, "shape", 0), ("arithmetic_share",)]
)
def test_a_workload_with_a_number_larger_than_any(ddpsim: Callable, tiny: Path, tmp_path: Path, path: tuple) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken(json.loads(tiny.read_text()), path, HUGE, remove=False)))
    ddpsim("predict", "--workload", file, *HERE).refused("broken.json", ".".join(map(str, path)).removesuffix(".0"))


@pytest.mark.parametrize("path", [("start_s",), ("buckets", 0, "size_bytes"), ("gradients", 0, 2)])
def test_a_trace_with_a_number_larger_than_any(ddpsim: Callable, measured: tuple[Path, Path], path: tuple) -> None:
    predicted, folder = measured
    file = folder / "rank0.json.gz"
    whole = json.loads(gzip.decompress(file.read_bytes()))
    number = next(n for n, e in enumerate(whole["traceEvents"]) if "iteration_record" in e.get("args", {}))
    changed = broken(whole, ("traceEvents", number, "args", "iteration_record", *path), HUGE, remove=False)
    file.write_bytes(gzip.compress(json.dumps(changed).encode()))
    ddpsim("validate", predicted, folder).refused("rank0.json.gz", f"traceEvents.{number}", "not a")


@pytest.mark.parametrize(("inner", "what"), [("[" * 200_000, "nested too deep"), ("9" * 5000, "too many digits")])
def test_json_that_cannot_be_taken_in(
    ddpsim: Callable, measured: tuple[Path, Path], tiny: Path, tmp_path: Path, inner: str, what: str
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(f'{{"a": {inner}}}')
    commands = (
        ("predict", "--workload", file, *HERE),
        ("predict", "--workload", tiny, *HERE, "--plan", file),
        ("predict", "--workload", tiny, *HERE, "--calibration", file),
        ("allreduce", "--topology", "loopback", "--measured", file),
        ("validate", file, measured[1]),
    )
    for command in commands:
        ddpsim(*command).refused("broken.json", what)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_numbers_that_are_not_finite(
    ddpsim: Callable, measured: tuple[Path, Path], tiny: Path, tmp_path: Path, number: str
) -> None:
    predicted, folder = measured
    file, trace = tmp_path / "broken.json", folder / "rank0.json.gz"
    text = tiny.read_text()
    file.write_text(text.replace('"made by hand"', number))
    assert number in file.read_text()
    ddpsim("workload", "show", file, "--json").refused("broken.json: provenance.source", "is not a finite number")
    ddpsim("predict", "--workload", file, *HERE, "--json").refused("broken.json: provenance.source")
    trace.write_bytes(
        gzip.compress(gzip.decompress(trace.read_bytes()).replace(b'"tid": 7', f'"tid": {number}'.encode()))
    )
    ddpsim("validate", predicted, folder).refused("rank0.json.gz: traceEvents.", ".tid", "is not a finite number")


@pytest.mark.parametrize("option", ["--workload", "--topology", "--plan", "--calibration"])
def test_names_longer_than_a_file_may_have(ddpsim: Callable, tiny: Path, option: str) -> None:
    given = {"--workload": tiny, "--topology": "loopback"} | {option: "x" * 5000}
    result = ddpsim("predict", *(word for pair in given.items() for word in pair), "--gpus-per-node", "2")
    result.refused(" characters) ... xxx")
    assert len(result.err) < 1000


def test_standard_input_that_is_no_text(ddpsim: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: \xff"), encoding="utf-8"))
    ddpsim("topo", "show", "-").refused("standard input", "not text", "at byte 6")
