"""Documents that people pass around: read with every problem placed, and written, as their records declare them."""

from ddpsim.documents.errors import document_error, format_value, join_errors, problems, quantity
from ddpsim.documents.records import document_of, keys_of, read_as

__all__ = [
    "document_error", "document_of", "format_value", "join_errors", "keys_of", "problems", "quantity", "read_as",
]  # fmt: skip
