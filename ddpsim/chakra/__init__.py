"""Chakra execution traces of MLCommons: a simulated step written as them, and a workload read from them.

The schema is that of https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto at commit 6dc63e1.
"""

from ddpsim.chakra.importing import ImportedTrace, import_trace
from ddpsim.chakra.schema import check_installed
from ddpsim.chakra.writing import write_traces

__all__ = ["ImportedTrace", "check_installed", "import_trace", "write_traces"]
