import pytest

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError
from ddpsim.workload.optimizers import ADDITION, OPTIMIZERS, optimizer_named, optimizer_of_kind

MANY = [Parameter(f"p{i}", (1000,)) for i in range(300)]
ONE = [Parameter("p", (100_000_000,))]


def work(name, parameters):
    return sum(OPTIMIZERS[name].works_s(parameters, 1e12, 3e-6))


def test_traffic_bounds_large_parameters_and_launches_small_ones():
    # 400 MB at 1 TB/s, read or written so often.
    assert work("adamw-fused", ONE) == pytest.approx(7 * 0.4e-3)
    assert work("adamw", ONE) == pytest.approx(20 * 0.4e-3)
    assert work("adamw", MANY) == pytest.approx(300 * 12 * 3e-6)
    assert work("adamw-foreach", MANY) < work("adamw", MANY) / 10


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_loop_costs_the_host_more_than_foreach_and_that_more_than_fused(kind):
    loop, foreach, fused = (OPTIMIZERS[kind + form].host_s(300) for form in ("", "-foreach", "-fused"))
    assert loop > 5 * foreach > 5 * fused


def test_clipping_adds_its_own():
    plain, clipped = optimizer_named("sgd"), optimizer_named("sgd", clipping=True)
    assert clipped.passes == plain.passes + 3
    assert clipped.host_s(10) > plain.host_s(10)
    assert sum(OPTIMIZERS["none"].works_s(MANY, 1e12, 3e-6)) == pytest.approx(0, abs=1e-5)


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(UnknownNameError, match="optimizer: unknown optimizer 'adamv'; did you mean adam"):
        optimizer_named("adamv")


def test_a_kind_names_the_optimizer_that_it_is_of():
    for name, clipping in (("adamw-fused", False), ("sgd", True)):
        made = optimizer_named(name, clipping=clipping)
        assert made.kind == name + ("+clip" if clipping else "")
        assert optimizer_of_kind(made.kind) == made
    assert optimizer_named("sgd", clipping=True).with_clipping() == optimizer_named("sgd", clipping=True)


def test_adding_a_gradient_reads_two_and_writes_one():
    assert sum(ADDITION.works_s(ONE, 1e12, 3e-6)) == pytest.approx(3 * 0.4e-3)
    assert sum(ADDITION.works_s(MANY, 1e12, 3e-6)) == pytest.approx(300 * 3e-6)
