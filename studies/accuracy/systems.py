"""The measured tables with the machine each was measured on, from its header and its vendor's documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim.calibrating.measured import read_table
from ddpsim.calibrating.samples import Sample
from ddpsim.topology.graph import Topology
from ddpsim.topology.spec import load_topology

MACHINES = Path(__file__).parent / "machines"
TABLES = Path(__file__).resolve().parents[2] / "tests" / "data" / "tables"
SMALLEST_BYTES = 1024


@dataclass(frozen=True)
class System:
    """A table's file, its machine (shipped, or in `machines/`), its nodes, the site whose machine it is.

    Attributes:
        table: the file's name in `tables/`.
        algorithm, nccl: the one forced, and the version, where the page the table is from says so and its header not.
    """

    table: str
    machine: str
    nodes: int
    site: str
    ranks: int | None = None
    algorithm: str | None = None
    nccl: str | None = None

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return Path(self.table).stem

    @property
    def cited(self) -> bool:
        """Whether its table was found after the model had been built on the others."""
        return self in CITED or self in LATER


SYSTEMS = (
    System("abci_A_a100_8gpu.csv", "abci-a", 1, "abci-a"),
    System("abci_A_a100_16gpu.csv", "abci-a", 2, "abci-a"),
    System("abci_A_a100_32gpu.csv", "abci-a", 4, "abci-a"),
    System("abci_V_v100_4gpu.csv", "abci-v", 1, "abci-v"),
    System("abci_V_v100_8gpu.csv", "abci-v", 2, "abci-v"),
    System("abci_V_v100_16gpu.csv", "abci-v", 4, "abci-v"),
    System("aws_p3dn_2node_16xV100_efa_nccl246.csv", "p3dn.24xlarge", 2, "p3dn"),
    System("aws_p3dn_2node_16xV100_efa_nccl248.csv", "p3dn.24xlarge", 2, "p3dn"),
    # Its command is examples/simple/nccl-efa-tests.yaml of the same repository, with NCCL_ALGO=RING.
    System("aws_p4d_2node_16xA100_efa.csv", "p4d.24xlarge", 2, "p4d", algorithm="ring"),
    System("aws_p5_1node_8xH100.csv", "dgx-h100", 1, "p5"),
    System("azure_4xK80_pcie.csv", "4xk80", 1, "nc24"),
    System("azure_nd_A100_v4_1node_8gpu.csv", "dgx-a100", 1, "ndv4"),
    # "Nvidia NCCL 2.5.6 with CUDA 10.1", "NCCL ring test": the page the table is from.
    System("deepops_2xDGX1V_roce.csv", "dgx-1v-roce", 2, "dgx-1v-roce", algorithm="ring", nccl="2.5.6"),
    # "-x NCCL_ALGO=RING": the job on the page the table is from.
    System("deepops_2xDGXA100_ib.csv", "dgx-a100", 2, "dgx-a100", algorithm="ring"),
    # Container deepops/nccl-tests-tf20.06: NGC's release 20.06 has NCCL 2.7.5.
    System("deepops_4xDGXA100_ib.csv", "dgx-a100", 4, "dgx-a100", nccl="2.7.5"),
    System("sheffield_bessemer_4xV100pcie_nccl2.4.2_2019a.csv", "4xv100-pcie", 1, "bessemer"),
    System("sheffield_bessemer_4xV100pcie_nccl2.8.3_11.0.2.csv", "4xv100-pcie", 1, "bessemer"),
    # Module NCCL-tests/2.13.6-GCC-11.3.0-CUDA-11.7.0 on the page: EasyBuild's toolchain 2022a has NCCL 2.12.12.
    System("sheffield_stanage_4xA100sxm.csv", "hgx-a100-4", 1, "stanage", nccl="2.12.12"),
    # SuperBench's image of then, nvcr.io/nvidia/pytorch:20.12-py3, has NCCL 2.8.3; so has the log's header.
    System("superbench_8xA100_nvswitch.csv", "dgx-a100", 1, "superbench", nccl="2.8.3"),
    System("v100_AR_GPU2.csv", "dgx-1v", 1, "vtrain", 2),
    System("v100_AR_GPU4.csv", "dgx-1v", 1, "vtrain", 4),
    System("v100_AR_GPU8.csv", "dgx-1v", 1, "vtrain", 8),
)
CITED = (
    System("abci_A_a100_64gpu.csv", "abci-a", 8, "abci-a"),
    System("abci_A_a100_128gpu.csv", "abci-a", 16, "abci-a"),
    System("abci_V_v100_32gpu.csv", "abci-v", 8, "abci-v"),
    System("abci_V_v100_64gpu.csv", "abci-v", 16, "abci-v"),
    System("abci_V_v100_128gpu.csv", "abci-v", 32, "abci-v"),
    System("aws_p4d_2node_16xA100_efa_eks.csv", "p4d.24xlarge", 2, "p4d"),
    System("aws_p4de_2node_16xA100_efa_awsome.csv", "p4d.24xlarge", 2, "p4de"),
    System("aws_p5_2node_16xH100_efa_awsome.csv", "p5.48xlarge", 2, "p5"),
    System("aws_p5_2node_16xH100_efa_eks.csv", "p5.48xlarge", 2, "p5"),
    System("aws_p5_2node_16xH100_efa_keitaw.csv", "p5.48xlarge", 2, "p5"),
    System("gcp_a3high_1node_8xH100_nccl2.22.3.csv", "dgx-h100", 1, "a3high"),
    System("together_1node_8xH100_nvls.csv", "dgx-h100", 1, "together"),
    System("h100_4of8_nvswitch.csv", "dgx-h100", 1, "h100-4of8", 4),
    System("gcp_a3mega_2node_16xH100.csv", "a3mega", 2, "a3mega"),
    System("gcp_a4_2node_16xB200_roce.csv", "dgx-b200", 2, "a4"),
    System("gcp_dranet_2node_2xH200_roce.csv", "dgx-h100-roce", 2, "dranet"),
    System("cscs_alps_2node_8xGH200_slingshot.csv", "gh200-quad", 2, "alps"),
    System("modal_1node_8xA100_sxm40.csv", "dgx-a100", 1, "modal"),
    System("crusoe_2node_16xA100_ib.csv", "dgx-a100", 2, "crusoe"),
)
"""Tables found after the model had been built on the others."""

LATER = (
    System("a100_80gb_1node_8gpu_thanos_g8.csv", "dgx-a100", 1, "thanos"),
    System("a100_80gb_1node_8gpu_thanos_mpi.csv", "dgx-a100", 1, "thanos"),
    System("aws_p3dn_2node_2xV100_efa_nccl264.csv", "p3dn.24xlarge", 2, "p3dn"),
    System("aws_p3dn_2node_16xV100_efa_nccl264.csv", "p3dn.24xlarge", 2, "p3dn"),
    System("aws_p3dn_8node_64xV100_efa_nccl264.csv", "p3dn.24xlarge", 8, "p3dn"),
    System("azure_nc48ads_a100_v4_2gpu_topo_only.csv", "ncv4-4", 1, "ncv4"),
    System("azure_nc96ads_a100_v4_4gpu.csv", "ncv4-4", 1, "ncv4"),
    System("azure_nc96ads_a100_v4_4gpu_topo_only.csv", "ncv4-4", 1, "ncv4"),
    System("gcp_a4_1node_8xB200.csv", "dgx-b200", 1, "a4"),
    System("gcp_a4_2node_16xB200_gib.csv", "dgx-b200", 2, "a4"),
    System("h20_1node_8gpu.csv", "h20", 1, "h20"),
    System("l40s_2node_1gpu_each_200g.csv", "l40s-roce", 2, "l40s-roce"),
    System("l40s_2node_2gpu_each_roce.csv", "l40s-roce", 2, "l40s-roce"),
    System("ndr_2node_16xH100_default.csv", "dgx-h100", 2, "ndr"),
    System("ndr_2node_16xH100_ring_minctas24.csv", "dgx-h100", 2, "ndr", algorithm="ring"),
    System("ndr_4node_32xH100_default.csv", "dgx-h100", 4, "ndr"),
    System("ndr_8node_64xH100_default.csv", "dgx-h100", 8, "ndr"),
    System("ndr_8node_64xH100_minctas24.csv", "dgx-h100", 8, "ndr"),
    System("oci_1node_8xA100_40gb_horovod_container.csv", "oci-bm-gpu4", 1, "oci", nccl="2.10.3"),
    System("oci_2node_16xA100_40gb_cuda11.6.csv", "oci-bm-gpu4", 2, "oci", nccl="2.11.4"),
    System("oci_2node_16xA100_40gb_horovod_container.csv", "oci-bm-gpu4", 2, "oci", nccl="2.10.3"),
    System("pcie_2x4090_docker.csv", "4x4090", 1, "kalavai"),
    System("pcie_2x4090_k8s_2sockets.csv", "2x4090-sockets", 1, "kalavai"),
    System("pcie_4x4090_docker.csv", "4x4090", 1, "kalavai"),
    System("polaris_1node_4xA100.csv", "polaris", 1, "polaris"),
    System("polaris_2node_8xA100_slingshot_nccl2.18.csv", "polaris", 2, "polaris"),
    System("polaris_2node_8xA100_tcp_nccl2.18.csv", "polaris-tcp", 2, "polaris"),
    System("polaris_4node_16xA100_slingshot_simple.csv", "polaris", 4, "polaris"),
    System("polaris_8node_32xA100_slingshot_nccl2.18.csv", "polaris", 8, "polaris"),
    System("polaris_256node_1024xA100_slingshot_nccl2.21.csv", "polaris", 256, "polaris"),
    System("sophia_dgxa100_2node_16xA100_ib.csv", "dgx-a100", 2, "sophia"),
    System("sophia_dgxa100_2node_16xA100_ib_pair2.csv", "dgx-a100", 2, "sophia"),
    System("voltagepark_1node_8xH100.csv", "dgx-h100", 1, "voltagepark"),
    System("voltagepark_4node_32xH100_ib.csv", "dgx-h100", 4, "voltagepark"),
    System("rtxpro6000_2gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("rtxpro6000_4gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("rtxpro6000_8gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("l40s_4gpu_pcie_auto.csv", "4xl40s-pcie", 1, "l40s"),
    System("l40s_4gpu_pcie_ring.csv", "4xl40s-pcie", 1, "l40s", algorithm="ring"),
    System("l40s_4gpu_pcie_tree.csv", "4xl40s-pcie", 1, "l40s", algorithm="tree"),
    System("l40s_2gpu_pcie_ring.csv", "2xl40s-pcie", 1, "l40s", algorithm="ring"),
    System("l40s_2gpu_pcie_tree.csv", "2xl40s-pcie", 1, "l40s", algorithm="tree"),
    System("gcp_a3high_3node_24xH100_tcp_ring_torch.csv", "a3high", 3, "a3high", algorithm="ring"),
    System("gcp_a3high_3node_24xH100_tcp_tree_torch.csv", "a3high", 3, "a3high", algorithm="tree"),
)
"""Tables found later still, some of machines that stand above too."""


def load(system: System, *, every: int = 1, smallest: int = SMALLEST_BYTES) -> Sample:
    """Return the rows of `smallest` bytes and more, every `every`-th of them."""
    table = read_table(TABLES / system.table)
    rows = [row for row in table.rows if row.size_bytes >= smallest][::every]
    stated = {"algorithm": system.algorithm, "nccl": system.nccl}
    header = {**table.header, **{key: value for key, value in stated.items() if value}}
    table = replace(table, rows=tuple(rows), ranks=table.ranks or system.ranks, header=header)
    return Sample.of(table, machine(system.machine), system.nodes)


def machine(name: str) -> Topology:
    """Return the topology of `name`, in `machines/` here or shipped."""
    path = MACHINES / f"{name}.yaml"
    return load_topology(str(path) if path.is_file() else name)


def load_all() -> Mapping[System, Sample]:
    """Return every system's sample, the cited ones last."""
    return {system: load(system) for system in (*SYSTEMS, *CITED, *LATER)}
