"""Topologies: machines as graphs of GPUs, switches, NICs and the links between them, and the ranks on them.

A `NodeTemplate` is one node: its `Gpu`s, `Nic`s, sockets and directed `Link`s, each with a bandwidth in bytes per
second and a latency in seconds. A `Cluster` is so many nodes of each template, the `Fabric` between their NICs, and
exceptions; nothing is expanded node by node. A `Placement` puts ranks on it, with nodes that are alike as one
`NodeClass`. A `Route` is how bytes go between two devices of a node, as NCCL chooses it. Files are YAML; importers
read what `nvidia-smi`, `rocm-smi` and NCCL write of a machine. `gpus` has the table of GPUs.

Read first: `node.py` and `declared.py` (what a machine is), `placement.py` and `paths.py` (what a job has of it),
`spec.py` (its file).

Public modules: beside, bounds, cluster, declared, domains, dump, far_gpus, file_advice, gpus.table, graph, hardware,
importers, link_rates, nccl_graph, node, nvidia_smi, paths, placement, processes, schema, spec, transports.
"""
