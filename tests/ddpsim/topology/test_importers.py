"""Importers: published files and hand-written ones, what they give and what they refuse."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.channels import find_channels
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.gpus.table import find_shipped_gpu, names
from ddpsim.topology.graph import Link, Topology
from ddpsim.topology.importers import import_topology
from ddpsim.topology.layouts import gpu_choices
from ddpsim.topology.node import is_mesh
from ddpsim.topology.spec import load_topology, parse_topology
from tests.profile import examples

PUBLISHED = Path(__file__).parents[2] / "data" / "topo"


def published(path: str, gpu: str | None) -> Topology:
    return import_topology((PUBLISHED / path).read_text(encoding="utf-8"), path, gpu=gpu)


FILES = [
    ("H100-topology.xml", None, "dgx-h100"),
    ("ndv2-topo.xml", "v100", "ndv2"),
    ("ndv4-topo.xml", "a100", "ndv4"),
    ("p4d-24xl-topo.xml", "a100", "p4d.24xlarge"),
    ("topo_8p_pcie.xml", None, None),
    ("hcm_8xV100_pytorch_readme.txt", None, "dgx-1v"),
]


@pytest.mark.parametrize(("path", "gpu", "machine"), FILES)
def test_published_files_import_and_their_yaml_loads_to_an_equal_graph(
    path: str, gpu: str | None, machine: str | None
) -> None:
    topology = published(path, gpu)
    assert parse_topology(dump_topology(topology), "again") == topology
    template = topology.groups[0].template
    channels = find_channels(template)
    assert len(channels.rings[0].gpus) == 8
    if machine is not None:
        assert channels.bus_bandwidth == find_channels(load_topology(machine).groups[0].template).bus_bandwidth


@pytest.mark.parametrize(("path", "machine"), [("p4d-24xl-topo.xml", "p4d.24xlarge"), ("ndv4-topo.xml", "ndv4")])
def test_a_shipped_machine_hangs_together_as_its_source_says(path: str, machine: str) -> None:
    imported = published(path, "a100").groups[0].template.parents()
    shipped = load_topology(machine).groups[0].template.parents()
    assert tree(imported) == tree(shipped)


def tree(parents: dict[str, Link]) -> dict[str, tuple[str, float]]:
    return {name: (link.target, link.bandwidth) for name, link in parents.items()}


@pytest.mark.parametrize("path", ["ndv2-topo.xml", "ndv4-topo.xml", "p4d-24xl-topo.xml"])
def test_files_without_nvlinks_ask_for_the_gpu_and_say_why(path: str) -> None:
    with pytest.raises(TopologyError, match=r"NVLinks are not in the file.*`gpu`"):
        published(path, None)


def test_the_matrix_of_a_cube_mesh_is_the_shipped_machine_but_for_what_it_cannot_say() -> None:
    imported = published("hcm_8xV100_pytorch_readme.txt", None).groups[0].template
    shipped = load_topology("dgx-1v").groups[0].template
    different = {new.kind for new, old in zip(imported.links, shipped.links, strict=True) if new != old}
    assert different == {"nic", "socket"}


XML = """<system version="1" mood="fine">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49" colour="red">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" device="0x20b2" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200" device="0x20b2" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.6" gdr="1"/>
             <net name="mlx5_1" dev="1" speed="100000" port="2" latency="0.6" gdr="1"/></nic>
      </pci>
    </pci>
    <hologram size="3"><lens width="2"/></hologram>
  </cpu>
</system>
"""


def test_a_complete_dump_needs_nothing_else() -> None:
    topology = import_topology(XML, "node.xml")
    template = topology.groups[0].template
    links = {link.name: link for link in template.links}
    assert [gpu.model for gpu in template.gpus] == ["A100", "A100"]
    assert (links["gpu0>gpu1"].count, links["gpu0>gpu1"].bandwidth) == (4, 80e9)
    assert (links["gpu0>pcie0"].bandwidth, links["gpu1>pcie0"].bandwidth) == (24e9, 12e9)
    assert [(nic.bandwidth, nic.latency_s, nic.gpudirect) for nic in template.nics] == [
        (25e9, pytest.approx(0.6e-6), True),
        (12.5e9, pytest.approx(0.6e-6), True),
    ]
    assert links["nic0>adapter0"].target == links["nic1>adapter0"].target
    assert dict(template.extras) == {
        "system.mood": "fine",
        "system/cpu[0].colour": "red",
        "system/cpu[0]/hologram[1]": "size=3",
        "system/cpu[0]/hologram[1]/lens[0]": "width=2",
    }
    assert parse_topology(dump_topology(topology), "again") == topology


def test_a_gpu_that_the_file_contradicts_is_said() -> None:
    def confidence(text: str, gpu: str | None) -> str:
        return import_topology(text, "node.xml", gpu=gpu).confidence

    assert confidence(XML, "v100") == "NVLinks from the file; V100 by --gpu, A100 by the file"
    assert confidence(XML, "a100") == confidence(XML, None) == "NVLinks from the file"
    amd = XML.replace('sm="80"', 'sm="90" gcn="gfx942"').replace("0x20b2", "0x74a2")
    assert import_topology(amd, "node.xml").compute_device == "gfx942"
    assert "gfx942 by the file" in confidence(amd, "h100")
    assert confidence(amd, "mi300x") == "xGMI from the file"


def test_devices_without_a_class_are_what_they_hold() -> None:
    stated = import_topology(XML, "node.xml").groups[0].template
    bare = import_topology(re.sub(r' class="0x\w+"', "", XML), "node.xml")
    assert (bare.groups[0].template.gpus, bare.groups[0].template.parents()) == (stated.gpus, stated.parents())
    assert [nic.bandwidth for nic in bare.groups[0].template.nics] == [nic.bandwidth for nic in stated.nics]
    assert parse_topology(dump_topology(bare), "again") == bare
    more = XML.replace("<hologram", '<pci busid="0000:09:00.0"/><pci busid="0000:0a:00.0" class=""/><hologram')
    imported = import_topology(more, "node.xml")
    assert imported.groups[0].template.links == stated.links
    assert imported.confidence == "NVLinks from the file; 2 PCI devices of no stated class left out"


def test_an_nvlink_of_a_gpu_to_itself_carries_nothing() -> None:
    itself = '<nvlink target="0000:03:00.0" count="6" tclass="0x030200"/>'
    links = '<gpu dev="0" sm="80" rank="0" gdr="1">'
    assert import_topology(XML.replace(links, links + itself), "node.xml") == import_topology(XML, "node.xml")


ODD = st.sampled_from(
    ["", "-3", "0", "1e9", "nan", "abc", "9" * 23, "0x060400", "0x030000", "0000:02:00.0", "é", "1.5"]
)


@given(st.lists(st.tuples(st.integers(0, 99), ODD), min_size=1, max_size=3))
@settings(max_examples=examples(150), deadline=None)
def test_odd_attributes_are_refused_or_survive_the_yaml(changes: list[tuple[int, str]]) -> None:
    text = XML
    for number, odd in changes:
        attributes = list(re.finditer(r'(\w+)="[^"]*"', text))
        place = attributes[number % len(attributes)]
        text = f'{text[: place.start()]}{place[1]}="{odd}"{text[place.end() :]}'
    try:
        topology = import_topology(text, "node.xml")
    except InputError:
        return
    assert parse_topology(dump_topology(topology), "again") == topology


BAD_XML = {
    "two GPUs in one": (
        XML.replace('<gpu dev="1" sm="80"', '<gpu dev="2"/><gpu dev="1" sm="80"'),
        ["2 <gpu>", "line 5"],
    ),
    "truncated": (XML[:700], ["malformed XML", "line"]),
    "other root": ("<html/>", ["is a page, not NCCL's XML"]),
    "no bus id": (XML.replace('busid="0000:02:00.0" ', ""), ["`busid`", "line 4"]),
    "no GPU": ('<system><cpu numaid="0"/></system>', ["no GPU"]),
    "entities": ('<!DOCTYPE s [<!ENTITY a "b">]><system/>', ["entities"]),
    "too deep": ("<system>" + "<pci>" * 3000, ["nested too deep"]),
    "neither": ("hello", ["neither NCCL"]),
    "empty": ("", ["neither NCCL"]),
}


ODD_XML = {
    "a card without ports under a socket": (XML.replace("<hologram", "<nic/><hologram"), {}),
    "a speed that is none": (XML.replace("16.0 GT/s", "32.0.32.0 GT/s"), {("gpu0", "pcie0"): 12e9}),
    "a processor's model in digits of another kind": (
        XML.replace("AuthenticAMD", "GenuineIntel").replace('modelid="49"', 'modelid="²"'),
        {("gpu0", "pcie0"): 24e9},
    ),
    "a number of a hundred digits": (XML.replace('link_width="16"', f'link_width="{"9" * 100}"'), {}),
    "equal ports on one line": (
        re.sub(r"<nic>.*?</nic>", "<nic><net name='m'/><net name='m'/></nic>", XML, flags=re.DOTALL),
        {("nic0", "adapter0"): 24e9, ("nic1", "adapter0"): 24e9},
    ),
}


@pytest.mark.parametrize(("text", "bandwidths"), ODD_XML.values(), ids=ODD_XML)
def test_odd_xml_that_still_tells_a_machine(text: str, bandwidths: dict[tuple[str, str], float]) -> None:
    topology = import_topology(text, "node.xml")
    links = {(link.source, link.target): link.bandwidth for link in topology.groups[0].template.links}
    assert bandwidths.items() <= links.items()
    assert parse_topology(dump_topology(topology), "again") == topology


def test_gpus_outside_any_socket_survive_the_yaml() -> None:
    text = re.sub(r"</?cpu.*?>|<nic>.*?</nic>|<hologram.*?</hologram>", "", XML, flags=re.DOTALL)
    topology = import_topology(text.replace('class="0x020700"', 'class="0x0c0330"'), "node.xml")
    assert {link.kind for link in topology.groups[0].template.links} == {"nvlink"}
    assert parse_topology(dump_topology(topology), "again") == topology


@pytest.mark.parametrize(("text", "words"), BAD_XML.values(), ids=BAD_XML)
def test_bad_xml(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        import_topology(text, "node.xml")
    for word in ["node.xml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("choice", gpu_choices())
def test_every_choice_of_gpu_gives_a_node_of_eight_or_says_what_to_do(choice: str) -> None:
    bare = "".join(f'<pci busid="0000:0{n}:00.0" class="0x030200"/>' for n in range(8))
    text = f'<system version="1"><cpu numaid="0">{bare}</cpu></system>'
    spec = find_shipped_gpu(choice)
    links = 0 if spec is None else spec.nvlinks
    if links and choice.startswith(("gb", "gh", "gp", "p100")):
        with pytest.raises(TopologyError, match=f"`gpu={choice}-pcie`"):
            import_topology(text, "x.xml", gpu=choice)
        return
    topology = import_topology(text, "x.xml", gpu=choice)
    template = topology.groups[0].template
    assert topology.compute_device.lower() in (choice, choice.removesuffix("-pcie"))
    assert len(template.gpus) == 8
    assert any(link.kind == "nvlink" for link in template.links) == bool(links)
    if links:
        assert {link.count for link in template.links if link.target == "nvswitch0"} <= {links}
    assert any(link.kind == "xgmi" for link in template.links) == choice.startswith(("mi250", "mi3"))


def test_every_gpu_of_the_table_may_be_named() -> None:
    assert {name.lower() for name in names()} <= set(gpu_choices())


def amd(gpus: int, *, pci: str = "", gpu: str = "", links: str = "", nic: str = "") -> str:
    """Return RCCL's file of GPUs, of which `links` has lines with `{n}` and `{other}` for each pair."""
    bus = "0000:{:02x}:00.0".format
    devices = ""
    for n in range(gpus):
        joined = "".join(links.format(other=bus(16 + other)) for other in range(gpus) if links and other != n)
        devices += (
            f'<pci busid="{bus(16 + n)}" {pci} link_speed="32.0 GT/s PCIe" link_width="16">'
            f'<gpu dev="{n}" {gpu} arch="38911" rank="{n}" gdr="1">{joined}</gpu></pci>'
        )
    cpu = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"'
    return f'<system version="2"><cpu numaid="-1" affinity="ff" {cpu}>{devices}{nic}</cpu></system>'


XGMI = '<xgmi target="{other}" count="1" tclass="0x120000"/>'
ACCELERATOR = 'class="0x120000"'
AMD = {
    "an accelerator by its class, its GPU chosen": (ACCELERATOR, 'sm="304" gcn="gfx942"', "mi300x", "MI300X", 48e9),
    "by its PCI device": ('class="0x120000" vendor="0x1002" device="0x74a1"', 'sm="304"', None, "MI300X", 48e9),
    "a virtual function": ('class="0x120000" vendor="0x1002" device="0x74b5"', 'gcn="942"', None, "MI300X", 48e9),
    "an architecture of several GPUs": (ACCELERATOR, 'sm="304" gcn="942"', None, "gfx942", 48e9),
    "an architecture of one GPU": ('class="0x038000"', 'sm="90" gcn="908"', None, "MI100", 24e9),
    "major, minor and stepping in a row": ('class="0x038000"', 'sm="90" gcn="910"', None, "gfx90a", 36e9),
    "the same, chosen": ('class="0x038000"', 'sm="110" gcn="910"', "mi250x", "MI250X", 36e9),
    "with its features": ('class="0x038000"', 'sm="90" gcn="gfx90a:sramecc+:xnack-"', "mi210", "MI210", 36e9),
    "an old one": ('class="0x038000"', 'sm="60" gcn="906"', "mi60", "MI60", 24e9),
    "no class": ("", 'sm="64" gcn="900"', None, "gfx900", 24e9),
}


@pytest.mark.parametrize(("pci", "gpu", "choice", "model", "bandwidth"), AMD.values(), ids=AMD)
def test_files_of_rccl_are_machines_joined_by_xgmi(
    pci: str, gpu: str, choice: str | None, model: str, bandwidth: float
) -> None:
    text = amd(3, pci=pci, gpu=gpu, links=XGMI).replace(  # one to itself, and one to a GPU that is not in the file
        "</gpu>", XGMI.format(other="0000:10:00.0") + XGMI.format(other="ffff:10:00.0") + "</gpu>", 1
    )
    topology = import_topology(text, "system.xml", gpu=choice)
    links = {(link.source, link.target): link for link in topology.groups[0].template.links if link.kind == "xgmi"}
    assert (topology.compute_device, topology.backend) == (model, "rccl")
    assert {(source, target) for source, target in links} == {
        (f"gpu{a}", f"gpu{b}") for a in range(3) for b in range(3) if a != b
    }
    assert {link.bandwidth for link in links.values()} == {bandwidth}
    assert topology.confidence.startswith("xGMI from the file")
    assert ("--gpu says which" in topology.confidence) == (model in ("gfx942", "gfx90a"))
    assert "by the file" not in topology.confidence
    assert parse_topology(dump_topology(topology), "again") == topology


def test_links_of_both_ends_that_differ_count_as_the_more_and_several_add_up() -> None:
    text = amd(2, pci=ACCELERATOR, gpu='gcn="942"', links='<xgmi target="{other}" count="2"/>' + XGMI)
    text = text.replace('count="2"', 'count="1"', 1)
    assert {link.count for link in import_topology(text, "x.xml").groups[0].template.links if link.kind == "xgmi"} == {
        3
    }


def test_only_accelerators_of_amd_or_with_a_gpu_line_are_gpus() -> None:
    other = '<pci busid="0000:99:00.0" class="0x120000" vendor="0x1da3" device="0x1020"/>'
    port = '<nic><net name="cxi0" dev="0" speed="200000" gdr="1"/></nic>'
    nic = f'<pci busid="0000:e1:00.0" class="0x020000" vendor="0x17db">{port}</pci>'
    topology = import_topology(amd(2, pci=ACCELERATOR, gpu='gcn="942"', nic=other + nic), "x.xml")
    template = topology.groups[0].template
    assert (len(template.gpus), template.nics[0].kind) == (2, "slingshot")
    assert topology.confidence.startswith("no xGMI in the file; --gpu adds those of eight")
    bare = re.sub("<gpu.*?</gpu>", "", amd(8, pci=ACCELERATOR))
    assert is_mesh(import_topology(bare, "x.xml", gpu="mi300x").groups[0].template)
    with pytest.raises(TopologyError, match="no <gpu> lines"):
        import_topology(bare, "x.xml")


@pytest.mark.parametrize(
    ("sm", "links", "model", "fitting"),
    [
        (80, 12, "A100", ""),
        (70, 6, "V100", ""),
        (90, 18, None, "gh200, gh200-144gb, h100, h20, h200, h200-nvl"),
        (80, 0, None, "a100, a100-80gb, a100-pcie, a100-pcie-80gb, a30, a800, a800-pcie"),
        (123, 0, "sm123", ""),
    ],
)
def test_compute_capability_and_links_tell_the_gpu_or_it_is_asked_for(
    sm: int, links: int, model: str | None, fitting: str
) -> None:
    text = re.sub(r' device="\w+"', "", XML).replace('sm="80"', f'sm="{sm}"').replace('count="4"', f'count="{links}"')
    if not links:
        text = re.sub("<nvlink.*?/>", "", text)
    if model is None:
        with pytest.raises(TopologyError, match=f"neither `sm={sm}` .*say `gpu`, one of {fitting}$"):
            import_topology(text, "x.xml")
    else:
        assert import_topology(text, "x.xml").compute_device == model
