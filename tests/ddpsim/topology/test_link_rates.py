import pytest

from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.topology.link_rates import has_link, link_names_of, with_link_rate
from ddpsim.topology.spec import load_topology

DGX = load_topology("dgx-1v")


def links(topology):
    return {link.name: link for link in topology.groups[0].template.links}


def test_every_nic_has_the_new_rate_as_nccl_sees_it_and_on_its_port():
    faster = with_link_rate(DGX, "nic", 50e9)
    assert {nic.bandwidth for nic in faster.groups[0].template.nics} == {50e9}
    changed = {name for name, link in links(faster).items() if link != links(DGX)[name]}
    assert changed == {name for name, link in links(DGX).items() if link.kind == "nic"}
    assert {links(faster)[name].bandwidth for name in changed} == {50e9}


def test_one_nic_leaves_the_others_as_they_are():
    faster = with_link_rate(DGX, "nic1", 50e9)
    before, after = ([nic.bandwidth for nic in each.groups[0].template.nics] for each in (DGX, faster))
    assert [b == a for b, a in zip(before, after, strict=True)] == [True, False, True, True]


def test_the_rate_of_a_kind_is_that_of_one_nvlink():
    doubled = with_link_rate(DGX, "nvlink", 40e9)
    nvlinks = [(links(DGX)[name], link) for name, link in links(doubled).items() if link.kind == "nvlink"]
    assert nvlinks
    assert all(after.bandwidth == 40e9 * before.count for before, after in nvlinks)


def test_a_link_by_its_name_is_the_same_as_a_degraded_link():
    slow = with_link_rate(DGX, "gpu0-gpu3", 1e9)
    changed = slow.place(1).classes[0].degraded
    assert {(link.name, link.bandwidth) for link in changed} == {("gpu0>gpu3", 1e9), ("gpu3>gpu0", 1e9)}


def test_a_link_that_is_not_there_is_refused_by_name():
    assert not has_link(DGX, "nic9")
    with pytest.raises(UnknownNameError, match="unknown link 'nvlnk'; did you mean nvlink"):
        with_link_rate(DGX, "nvlnk", 1e9)


def test_every_listed_name_is_taken():
    for name in link_names_of(DGX):
        assert with_link_rate(DGX, name, 1e9) != DGX


def test_a_rate_may_be_text() -> None:
    assert with_link_rate(DGX, "nic", "400Gb/s") == with_link_rate(DGX, "nic", 50e9)
    with pytest.raises(InputError, match=r"rate: .*'25'"):
        with_link_rate(DGX, "nic", "25")
