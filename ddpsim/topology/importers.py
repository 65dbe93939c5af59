"""One function that imports a topology, whatever its format: that is recognised by the text."""

from __future__ import annotations

from ddpsim.common.errors import TopologyError
from ddpsim.common.files import refuse_other_kind
from ddpsim.topology.cluster import Topology
from ddpsim.topology.nccl_xml import read_nccl_xml
from ddpsim.topology.nvidia_smi import read_topo_matrix
from ddpsim.topology.rocm_smi import TITLE, read_showtopo


def import_topology(text: str, place: str, *, gpu: str | None = None, name: str = "imported") -> Topology:
    """Return the node that NCCL's topology XML, `nvidia-smi topo -m` or `rocm-smi --showtopo` describes.

    Args:
        text: the whole file.
        place: its name, for errors and as its source.
        gpu: `v100`, `a100-pcie`, ...: needed where the file leaves out NVLinks.
        name: of the topology.

    Raises:
        TopologyError: none of these formats, malformed (with its line), or `gpu` is needed.
    """
    remedy = "give what `nvidia-smi topo -m` or `rocm-smi --showtopo` prints, or NCCL's XML"
    refuse_other_kind(text, "NCCL's XML of a machine", place, TopologyError, remedy)
    if text.lstrip().startswith("<"):
        return read_nccl_xml(text, place, gpu=gpu, name=name)
    if TITLE in text:
        return read_showtopo(text, place, gpu=gpu, name=name)
    if "GPU0" in text:
        return read_topo_matrix(text, place, gpu=gpu, name=name)
    raise TopologyError(
        "neither NCCL topology XML nor a matrix of `nvidia-smi topo -m` or `rocm-smi --showtopo`",
        place=place,
        remedy="give one of them, whole",
    )
