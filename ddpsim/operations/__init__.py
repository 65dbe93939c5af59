"""The operations of a process group: what both packages, their tables and their schedules call them."""

from ddpsim.operations.operation import Operation

__all__ = ["Operation"]
