"""Execution traces in MLCommons' Chakra format: a simulated step is written as one, and a workload is read from one.

A trace is a header and nodes, of computation, communication or metadata, each with the ids of nodes that come before
it. `schema` has the nodes and their bytes in protobuf, `steps` makes nodes of a simulated rank's step graph,
`writing` makes a file a rank, as ASTRA-sim reads them, and `importing` makes a workload of a file, ours or another
tool's. The schema is https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto, commit 6dc63e1.

Start with `writing.py`, then `steps.py`.

Public modules: importing, schema, writing.
"""
