"""Small files of every kind that the project reads, made from shipped ones."""

from __future__ import annotations

import gzip
import json
import pickle
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from ddpsim.bucketing import BucketCaps, Parameter, rebuilt_plan
from ddpsim.chakra.schema import TraceNode, decode
from ddpsim.cli.app import run
from ddpsim.common.workers.journal import code_digest
from ddpsim.simulation.job import Keys
from ddpsim.workload import Workload
from ddpsim.workload.files import save_workload, workload_document
from ddpsim.workload.order_trace import OrderTrace, order_trace_document
from ddpsim.workload.profile import Buffer, Phase
from tests.ddpsim.topology.showtopo_text import showtopo
from tests.ddpsim.workload.kineto_traces import Job

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "ddpexec" / "lab" / "campaign" / "recorded"


PREDICT = ("predict", "--topology", "dgx-1v", "--gpus-per-node", "2", "--iterations", "2")


def workload() -> Workload:
    """Return a GPU's workload of three parameters and two iterations."""
    times = np.array([1.0, 1.1])
    parameters = tuple(Parameter(f"layer{n}.weight", (64, 512)) for n in range(3))
    return Workload(
        name="tiny", device="V100", precision="fp32", batch_size=8, threads=None, estimated=True,
        parameters=parameters, buffers=(Buffer("mean", (64,)),), forward=Phase(0.001 * times, 0.004 * times),
        backward=Phase(0.002 * times, 0.008 * times), optimizer=Phase(0.0005 * times, 0.001 * times),
        gradient_hook_s=np.outer(times, [0.002, 0.0015, 0.001]),
        gradient_ready_s=np.outer(times, [0.008, 0.006, 0.004]),
        synchronises=("after_backward",), provenance={"source": "made by hand", "versions": {"torch": "2.13.0"}},
    )  # fmt: skip


XML = """<system version="1" mood="fine">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:04:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.6" gdr="1"/>
           <net name="mlx5_1" dev="1" speed="100000" port="2" latency="0.6" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"""
SWITCHED_XML = """<system version="1"><cpu numaid="0">
  <pci busid="0:1" class="0x030200"><gpu dev="0" sm="70"><nvlink target="0:9" count="6" tclass="0x068000"/></gpu></pci>
  <pci busid="0:2" class="0x030200"><gpu dev="1" sm="70"><nvlink target="0:9" count="6" tclass="0x068000"/></gpu></pci>
  <nic><net name="eth0" dev="0" speed="10000"/></nic>
</cpu></system>
"""
RCCL_XML = """<system version="1"><cpu numaid="0">
  <pci busid="0:1" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
    <gpu dev="0" sm="304" gcn="gfx942" rank="0"><xgmi target="0:2" count="1" tclass="0x120000"/></gpu></pci>
  <pci busid="0:2" class="0x038000" link_speed="32.0 GT/s PCIe" link_width="16">
    <gpu dev="1" sm="304" gcn="942" rank="1"><xgmi target="0:1" count="1" tclass="0x038000"/></gpu></pci>
  <nic><net name="bnxt_re0" dev="0" speed="400000"/></nic>
</cpu></system>
"""
GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX">
    <channel><gpu dev="0"/><gpu dev="0x2"/><gpu dev="1"/><gpu dev="3"/></channel>
    <channel><gpu dev="0"/><gpu dev="3"/><gpu dev="0x100000000000001"/><gpu dev="2"/></channel>
  </graph>
  <graph id="1" pattern="1" nchannels="1" speedintra="5">
    <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
  </graph>
</graphs>
"""
MATRICES = (
    """\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV1\tNV2\tSYS\tPIX\tSYS\t0-7\t0
GPU1\tNV1\t X \tNODE\tNV2\tPXB\tSYS\t0-7\t0
GPU2\tNV2\tNODE\t X \tNV1\tSYS\tPHB\t8-15\t1
GPU3\tSYS\tNV2\tNV1\t X \tSYS\tPIX\t8-15\t1
mlx5_0\tPIX\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPHB\tPIX\tSYS\t X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
""",
    "\n".join(
        ["\t" + "\t".join(f"GPU{n}" for n in range(8))]
        + [f"GPU{a}\t" + "\t".join("X" if a == b else "NV12" for b in range(8)) for a in range(8)]
    ),
)
NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid 5044 on node-a device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid 5045 on node-b device  0 [0x0f] NVIDIA A100-SXM4-40GB
NCCL version 2.21.5+cuda12.4
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1    10.10    0.00    0.00      0    10.00    0.00    0.00      0
        1024           256     float     sum      -1    20.50    0.05    0.05      0    20.10    0.05    0.05      0
     1048576        262144     float     sum      -1    81.00   12.94   12.94      0    80.00   13.10   13.10      0
    16777216       4194304     float     sum      -1   981.00   17.10   17.10      0   980.00   17.12   17.12      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6.5
"""
OLD_NCCL_TESTS = """#       size         count    type   redop     time   algbw  busbw  error  time  algbw  busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256   float     sum    20.50    0.05    0.05  2e-07    20.10    0.05    0.05  1e-07
"""
RCCL_TESTS = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#   Rank  0 Pid  5044 on     node-a device  0 [0000:0c:00.0] AMD Instinct MI300X
#   Rank  1 Pid  5045 on     node-a device  1 [0000:22:00.0] AMD Instinct MI300X
RCCL version 2.18.3+hip6.0 HEAD:2f6d59e+
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    61.00   17.19   17.19      0    60.00   17.48   17.48      0
    67108864      16777216  bfloat16     sum      -1   881.00   76.17   76.17      0   880.00   76.26   76.26    N/A
# Errors with asterisks indicate errors that have exceeded the maximum threshold.
# Out of bounds values : 0 OK
"""
CSV = """# ranks: 2
# nodes: 2
# nccl: 2.21.5
# algorithm: ring
size_bytes,count,oop_time_us,oop_algbw_GBps,oop_busbw_GBps,ip_time_us
0,0,35.2,0,0,34
1024,256,44.0,0.02,0.02,
4096,1024,52,0.08,0.08,49
1048576,262144,500,2.1,2.1,510
"""
CAMPAIGN = """name: recorded
iterations: 5
repeats: 2
max_step: 2s
microbench: {minbytes: 64K, maxbytes: 16M, stepfactor: 4, load_seconds: 0.5}
networks:
  pair: {ranks: 2, rate: 1gbit}
  slow: {ranks: 4, rate: 500mbit, delay: 1ms, slow: {node: 1, rate: 100mbit}, trunk: 2gbit}
runs:
  - {network: pair, workload: resnet50, wire_over_backward: 1, vary: {bucket_cap_mb: [null, 100], seed: [0, 1]}}
  - {network: slow, workload: mlp, scale_compute: 5, impl: ddpexec, gradient_as_bucket_view: true, straggler: {1: 2.0}}
  - {network: pair, model: mlp, batch_size: 2, bucket_cap_mb_list: [1, 25], no_sync_every: 2}
"""
TOPOLOGY = """name: two-kinds
sources: [made by hand]
nodes: {fast: 2, slow: 1}
templates:
  fast: {machine: 4xv100-pcie, workload: resnet50}
  slow:
    gpus: {count: 2, model: V100, peer_to_peer: PXB}
    nvlink: {pairs: [[0, 1, 2]], bandwidth: 25GB/s}
    pcie: {generation: 3, devices: {gpu0: 6GB/s}, switches: [{socket: 0, gpus: [0, 1], nics: [0]}]}
    cpu: {sockets: 2, bandwidth: 9GB/s, delay: 1us}
    nics: [{count: 1, rate: 100Gb/s, latency: 1us, delay: 2us}]
    extras: {owner: nobody}
fabric: {kind: two-level, nodes_per_leaf: 2, oversubscription: 2, trunk_delay: 1us}
gpus_per_node: 2
degraded: [{node: 1, link: nic0>network, bandwidth: 1Gb/s, delay: 1ms}]
"""

RACK = """name: rack
sources: [made by hand]
nodes: 4
nvlink_domain: {nodes: 2, partition: 2, mnnvl: true}
node:
  gpus: {count: 2, model: GB200}
  nvswitch: {links_per_gpu: 18, bandwidth: 40GB/s}
  pcie: {generation: 5, switches: [{socket: 0, gpus: [0], nics: [0]}, {socket: 0, gpus: [1], nics: [1]}]}
  nics: [{count: 2, rate: 400Gb/s, kind: infiniband}]
fabric: {kind: two-level, nodes_per_leaf: 2, oversubscription: 2, routing: ecmp}
"""
AMD = """name: four
sources: [made by hand]
nodes: 4
node:
  gpus: {count: 4, model: MI210}
  xgmi: {pairs: [[0, 1, 1], [0, 2, 1], [1, 3, 2], [2, 3, 1]], bandwidth: 40GB/s, delay: 1us}
  pcie: {slots: [{socket: 0, gpus: [0, 1, 2, 3], nics: [0]}]}
  nics: [{count: 1, rate: 200Gb/s, kind: roce}]
fabric: {kind: two-level, nodes_per_leaf: 1, trunk: 100Gb/s, routing: adaptive}
"""


def topologies() -> list[str]:
    """Return the YAML of machines of every kind."""
    return [
        TOPOLOGY,
        *_shipped("topologies", "dgx-1v", "dgx-a100", "lab-trunk", "loopback", "p3.8xlarge", "gh200-quad"),
    ]


def racks() -> list[str]:
    """Return the YAML of machines whose nodes share an NVLink domain: a small one, and a shipped rack."""
    return [RACK, *_shipped("topologies", "gb200-nvl72")]


def amds() -> list[str]:
    """Return the YAML of machines that xGMI joins: by pairs, with stated rings, and as a mesh."""
    return [AMD, *_shipped("topologies", "mi250x-4", "mi300x-8")]


def tables_of_rccl() -> list[str]:
    """Return tables of allreduces on AMD's machines: rccl-tests', and a kept one."""
    kept = ROOT / "studies" / "amd" / "tables" / "aac10_mi300x_2nodes.csv"
    return [RCCL_TESTS, "".join(kept.read_text(encoding="utf-8").splitlines(keepends=True)[:14])]


def gpus() -> list[str]:
    """Return the YAML of GPUs: a user's shortest one, and shipped ones."""
    shortest = "name: mine\nmemory_bandwidth: 1792GB/s\npeaks: {fp32: 126TFLOP/s, amp: 504TFLOP/s}\n"
    return [shortest, *_shipped("gpus", "A100-PCIe-80GB", "RTX5090", "K80")]


def amd_gpus() -> list[str]:
    """Return the YAML of AMD's GPUs."""
    return _shipped("gpus", "MI210", "MI300X")


def matrices_of_amd() -> list[str]:
    """Return what `rocm-smi --showtopo` prints of a mesh of eight, and of two fours of cards."""
    mesh = showtopo(8, lambda a, b: True, lambda number: number // 4)
    return [mesh, showtopo(8, lambda a, b: a // 4 == b // 4, lambda number: number // 4)]


def _shipped(folder: str, *names: str) -> list[str]:
    return [(ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8") for name in names]


def kineto() -> list[dict[str, Any]]:
    """Return Kineto traces with and without DDP and a device."""
    jobs = (
        Job([80.0, 60.0], ddp=True, recorded=True, synchronise=True),
        Job([80.0, 60.0, 40.0], ddp=True, recorded=True, others=True),
        Job([80.0], recorded=True),
    )
    documents = [job.document(steps) for job, steps in zip(jobs, (2, 1, 2), strict=True)]
    host_only = [event for event in documents[2]["traceEvents"] if event["cat"] in ("cpu_op", "user_annotation")]
    accumulated = Job([80.0], ddp=True, recorded=True, rounds=2).document(2)
    return [*documents, {"traceEvents": host_only}, accumulated, old_kineto()]


def old_kineto() -> dict[str, Any]:
    """Return a Kineto trace as torch 1.8 to 1.11 wrote it, its moments from a base of its own."""
    document: dict[str, Any] = Job([80.0, 60.0], recorded=True).document(2)
    names = {"kernel": "Kernel", "cuda_runtime": "Runtime"}
    for event in document["traceEvents"]:
        event["cat"] = names.get(event["cat"], "Operator")
    process = {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "rank 1"}}
    return {"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [process, *document["traceEvents"]]}


def execution_traces() -> list[dict[str, Any]]:
    """Return what is no Kineto trace, but is recognised: PyTorch's execution trace, and Chakra's JSON."""
    node = {"id": 2, "name": "aten::mm", "ctrl_deps": 1, "inputs": {"values": [], "shapes": [[2, 2]], "types": []}}
    torchs = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2026-11-28", "start_ts": 1, "nodes": [node]}
    return [torchs, {"version": "0.0.4", "attr": []}]


def chakra() -> list[list[Any]]:
    """Return Chakra execution traces as lists of a header and nodes: a predicted one, and one of another tool."""
    with tempfile.TemporaryDirectory() as name:
        save_workload(workload(), Path(name) / "w.json")
        with redirect_stdout(StringIO()):
            run([*PREDICT, "--workload", f"{name}/w.json", "--chakra", f"{name}/chakra"])
        first = min((Path(name) / "chakra").glob("*.et"))
        header, nodes = decode(first.read_bytes(), "seed")
    sent: dict[str, Any] = {"comm_type": 0, "comm_size": 4096, "pg_name": "0"}
    others = [
        TraceNode(1, "forward", 4, duration_us=900, attributes={"is_cpu_op": False}),
        TraceNode(2, "backward", 4, data=(1,), duration_us=1900, attributes={"is_cpu_op": False}),
        TraceNode(3, "AllReduce", 7, data=(2,), duration_us=300, attributes=sent),
    ]
    traces: list[list[Any]] = [[header, *map(asdict, nodes)], [{}, *map(asdict, others)]]
    return [json.loads(json.dumps(trace)) for trace in traces]


def tuning() -> dict[str, Any]:
    """Return what a tuner left."""
    plan = {"call": "DistributedDataParallel(m)", "buckets": 2, "predicted_step_s": 0.1, "predicted_gain": 0.02}
    one = {"first_step": 0, "steps": 9, "present": "a", "kept": "b", "reason": "faster", "plans": [plan]}
    return {"schema": "ddpsim.tuning/1", "rounds": [one]}


BESIDE = "workload: resnet50\nnodes: 1\ngpus_per_node: 2\nphase: 0.25\nscheme: fsdp2\nbucket_cap_mb: 25\n"


def order_trace() -> dict[str, Any]:
    """Return a trace of orders of two ranks."""
    mine = workload()
    document: dict[str, Any] = order_trace_document(OrderTrace((mine, mine), ((None, None), (None, None))))
    return document


def kineto_without_shapes() -> dict[str, Any]:
    """Return a Kineto trace of `workload`, recorded without shapes."""
    document: dict[str, Any] = Job([80.0, 60.0, 40.0], ddp=True, others=True, elements=64 * 512).document(1)
    return document


def plan() -> dict[str, Any]:
    """Return the plan of `workload`."""
    return rebuilt_plan(workload().parameters, BucketCaps(bucket_cap_mb=0.2)).document()


@cache
def _predicted() -> tuple[str, Mapping[str, bytes]]:
    """Return a prediction of `workload` as JSON, and the files of its trace."""
    with tempfile.TemporaryDirectory() as name:
        folder, printed = Path(name), StringIO()
        save_workload(workload(), folder / "w.json")
        with redirect_stdout(printed):
            run([*PREDICT, "--workload", f"{name}/w.json", "--trace", f"{name}/trace", "--json"])
        files = {path.name: path.read_bytes() for path in (folder / "trace").iterdir()}
    return printed.getvalue(), files


def prediction() -> dict[str, Any]:
    """Return what `ddpsim predict --json` prints of `workload`."""
    document: dict[str, Any] = json.loads(_predicted()[0])
    return document


def rank_file() -> dict[str, Any]:
    """Return rank 0's trace of the prediction."""
    document: dict[str, Any] = json.loads(gzip.decompress(_predicted()[1]["rank0.json.gz"]))
    return document


def run_file() -> dict[str, Any]:
    """Return `run.json` beside it."""
    document: dict[str, Any] = json.loads(_predicted()[1]["run.json"])
    return document


def measured() -> list[dict[str, Any]]:
    """Return tables in JSON: the microbenchmark's, and what nccl-tests writes with `-J`."""
    ours = json.loads((RECORDED / "networks" / "pair" / "allreduce.json").read_text(encoding="utf-8"))
    row = {"time": 81.0, "alg_bw": 12.94, "bus_bw": 12.94, "nwrong": "N/A"}
    theirs = {
        "version": 1, "nccl_version": 22907, "args": ["all_reduce_perf", "-b", "8"], "env": ["NCCL_ALGO=Ring"],
        "config": {
            "nthreads": 1, "ngpus": 1,
            "devices": [{"rank": n, "hostname": f"node{n}", "pid": 5 + n, "device_name": "A100"} for n in range(2)],
        },
        "results": [
            {"size": 1 << n, "type": "float", "redop": "sum", "root": "-1", "out_of_place": row, "in_place": dict(row)}
            for n in (20,)
        ],
        "out_of_bounds": {"count": 0, "okay": True},
    }  # fmt: skip
    return [ours, theirs]


def calibration() -> dict[str, Any]:
    """Return a fitted calibration."""
    document: dict[str, Any] = json.loads((RECORDED / "networks" / "pair" / "calibration.json").read_text("utf-8"))
    return document


def record() -> dict[str, Any]:
    """Return a configuration's record with one short run."""
    path = RECORDED / "runs" / "mlp-delayed-wire5-view-ddpexec-default.json.gz"
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    document["runs"] = document["runs"][:1]
    document["runs"][0]["iterations"] = document["runs"][0]["iterations"][:2]
    document["documents"] = {"prediction": {"iteration_s": 1.0}}
    return document


def workload_json() -> dict[str, Any]:
    """Return `workload` as a document."""
    return workload_document(workload())


PRICES = "currency: USD\ndate: 2026-11-22\nper_hour: {dgx-1v: 24.48, p3.16xlarge: 31.22}\n"


def recorder() -> bytes:
    """Return a dump of torch's flight recorder."""
    entries = [
        {
            "collective_seq_id": number, "time_created_ns": 10**18 + number, "profiling_name": "nccl:all_reduce",
            "process_group": ("0", "default_pg"), "input_sizes": [[1024, 8]], "state": "completed", "is_p2p": False,
            "retired": True, "frames": [{"name": "step", "filename": "train.py", "line": number}],
        }
        for number in range(4)
    ]  # fmt: skip
    return pickle.dumps({"version": "2.4", "entries": entries}, protocol=2)


ANSWERS = ("first", "second")
"""What a journal's answers are of."""


def journal() -> bytes:
    """Return a journal of two answers."""
    lines, key_of = [], Keys().of
    for each in ANSWERS:
        body = b'{"iteration_s": 0.5, "nodes": 2}'
        point = f"{code_digest()}{key_of(each)}".encode()
        lines.append(b'{"point": "%s", "crc32": %d, "answer": ' % (point, zlib.crc32(body)) + body + b"}\n")
    return b"".join(lines)
