from dataclasses import replace

import numpy as np

from ddpsim.common.shipped import names
from ddpsim.workload.files import load_workload
from ddpsim.workload.profile import ForwardUse
from ddpsim.workload.replayed import single_clock


def test_every_shipped_workload_keeps_its_arrival_order_on_one_clock():
    for name in names("workload"):
        source = load_workload(name)
        assert single_clock(source).arrival_order() == source.arrival_order(), name


def test_forward_uses_are_on_the_one_clock_too():
    source = load_workload("mlp")
    host, device = np.array([0.0, np.nan, 3.0, 4.0]), np.array([1.0, np.nan, 2.0, 5.0])
    some = replace(source, **_first_four(source), forward_use_s=ForwardUse(host, device))
    merged = single_clock(some, 2.0).forward_use_s
    assert merged.host_s.tolist()[2:] == merged.device_s.tolist()[2:] == [6.0, 10.0]
    assert merged.host_s[0] == 2.0
    assert np.isnan(merged.host_s[1])


def _first_four(source):
    hooks = {name: getattr(source, name)[:, :4] for name in ("gradient_hook_s", "gradient_ready_s")}
    return {"parameters": source.parameters[:4], **hooks}
