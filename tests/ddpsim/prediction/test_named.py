"""Names where objects are taken, one where several are, and InputError for what is neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ddpsim
from ddpsim import BucketCaps, InputError, Options

ONE = Options(iterations=1)


def test_names_are_taken_wherever_objects_are() -> None:
    by_object = ddpsim.predict(
        ddpsim.load_workload("mlp"), ddpsim.load_topology("dgx-1v"), nodes=2, options=ONE, band=False
    )
    by_name = ddpsim.predict("mlp", "dgx-1v", nodes=2, options=ONE, band=False)
    assert by_name.iteration_s == by_object.iteration_s
    by_path = ddpsim.predict("mlp", Path("topologies/dgx-1v.yaml").resolve(), nodes=2, options=ONE, band=False)
    assert by_path.iteration_s == by_object.iteration_s


def test_one_is_taken_where_several_are() -> None:
    [row] = ddpsim.plan("mlp", "dgx-1v", nodes=1, caps=5, options=ONE).rows
    assert row.default.nodes == 1
    [found] = ddpsim.sweep("mlp", "dgx-1v", nodes=2, caps=BucketCaps(bucket_cap_mb=5), options=ONE)
    assert found.nodes == 2
    assert [row.nodes for row in ddpsim.compare("mlp", "dgx-1v", nodes=1, options=ONE).rows] == [1]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"workload": 3}, "workload"),
        ({"topology": None}, "topology"),
        ({"nodes": "4"}, "nodes"),
        ({"nodes": 1.5}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"gpus_per_node": [1]}, "gpus_per_node"),
        ({"options": {"caps": 25}}, "options"),
        ({"calibration": 1}, "calibration"),
    ],
)
def test_what_is_no_such_argument_is_named(arguments: dict[str, Any], place: str) -> None:
    given = {"workload": "mlp", "topology": "dgx-1v"} | arguments
    with pytest.raises(InputError) as refused:
        ddpsim.predict(**given, band=False)
    assert refused.value.place == place
    assert refused.value.remedy


def test_several_are_checked_each() -> None:
    with pytest.raises(InputError, match="no machine"):
        ddpsim.plan("mlp", ["dgx-1v", 3])
    with pytest.raises(InputError, match="not a count"):
        ddpsim.sweep("mlp", "dgx-1v", nodes=[1, "2"], caps=[5])
    with pytest.raises(InputError, match="no bucket cap"):
        ddpsim.sweep("mlp", "dgx-1v", nodes=1, caps="25")
    with pytest.raises(InputError, match="no workload"):
        ddpsim.compare([None], "dgx-1v")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_sizes", 0),
        ("batch_sizes", [8, -8]),
        ("samples_per_epoch", -1),
        ("samples_per_epoch", "1281167"),
        ("efficiency", "80%"),
        ("efficiency", float("nan")),
        ("link_rates", [("nic", -1.0)]),
        ("link_rates", ["25Gb/s"]),
        ("link_rates", 25),
        ("prices", [("dgx-1v", "3USD/h")]),
    ],
)
def test_a_comparison_takes_no_figure_that_none_has(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as refused:
        ddpsim.compare("mlp", "dgx-1v", **given)
    assert refused.value.place == name
