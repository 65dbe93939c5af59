from ddpsim.shipped import names
from ddpsim.workload.files import load_workload
from ddpsim.workload.single_clock import single_clock


def test_every_shipped_workload_keeps_its_arrival_order_on_one_clock():
    for name in names("workload"):
        source = load_workload(name)
        assert single_clock(source).arrival_order() == source.arrival_order(), name
