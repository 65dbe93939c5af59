import pytest

from ddpsim.common import shipped
from ddpsim.common.documents.fields import document_of
from ddpsim.common.errors import InputError
from ddpsim.topology.gpus.table import find_by_driver_name, find_shipped_gpu, gpu_from, names, read_gpu


def test_the_table_spans_volta_to_blackwell():
    table = [find_shipped_gpu(name) for name in names()]
    assert len(table) >= 30
    assert {"Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"} <= {gpu.architecture for gpu in table}
    for gpu in table:
        assert gpu.sources
        assert gpu.memory
        assert gpu.kind in names(), "a form is of a GPU in the table"
        assert (gpu.sm is None) == (gpu.gcn is not None), "a GPU is one vendor's"
        assert ("bf16" in gpu.peaks) == (gpu.sm is None or gpu.sm >= 80)


@pytest.mark.parametrize("name", names())
def test_a_file_bears_its_gpus_name_and_its_driver_is_recognised(name):
    spec = find_shipped_gpu(name)
    assert spec.name == shipped.path("gpu", name).stem
    for words in spec.driver:
        assert find_by_driver_name(f"NVIDIA {words}").name == name


@pytest.mark.parametrize("name", names())
def test_a_gpu_is_written_as_it_is_read(name):
    spec = find_shipped_gpu(name)
    assert gpu_from(document_of(spec), "written") == spec


def test_a_card_without_peer_to_peer_says_from_where_that_is_known():
    without = [gpu for gpu in map(find_shipped_gpu, names()) if not gpu.peer_to_peer]
    assert {"RTX2080Ti", "RTX3090", "RTX4090", "RTX5090"} <= {gpu.name for gpu in without}
    assert not {"GTX1080Ti", "RTXPRO6000", "L40S", "A40"} & {gpu.name for gpu in without}
    for gpu in without:
        assert any("P2P" in line for line in (*gpu.sources, *gpu.notes))


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSuper"),
        ("Quadro RTX 6000", "QuadroRTX6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000-Server"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X", "MI250X"),
    ],
)
def test_drivers_names(driver, name):
    assert find_by_driver_name(driver).name == name


@pytest.mark.parametrize("driver", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Voodoo"])
def test_a_part_of_a_gpu_is_not_the_whole(driver):
    assert find_by_driver_name(driver) is None


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text("name: Mine\nmemory_bandwidth: 1792GB/s\npeaks: {fp32: 126T, amp: 504TFLOP/s}\n")
    gpu = read_gpu(path)
    assert (gpu.memory_bandwidth, gpu.peaks["bf16"]) == (1.792e12, 5.04e14)
    path.write_text(path.read_text() + "sm: 75\n")
    assert "bf16" not in read_gpu(path).peaks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: Mine\npeaks: {fp32: 126T}\n", r"memory_bandwidth \(line 1\): the key is missing"),
        ("name: Mine\nmemory_bandwidth: 1792\npeaks: {fp32: 126T}\n", r"memory_bandwidth \(line 2\): .*has no unit"),
        ("name: Mine\nmemory_bandwidth: 1GB/s\npeaks: {}\n", "peaks"),
        ("name: Mine\nmemory_bandwidth: 1GB/s\npeaks: {fp32: 0T}\n", "out of range"),
        ("name: Mine\nmemory_bandwith: 1GB/s\npeaks: {fp32: 1T}\n", "did you mean memory_bandwidth"),
        ("- 1\n", "a mapping was expected"),
        ("name: [\n", "malformed YAML"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text, message):
    path = tmp_path / "g.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_gpu(path)
    assert "g.yaml" in str(error.value)
