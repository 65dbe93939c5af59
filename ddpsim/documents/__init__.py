"""Documents that people pass around, as pydantic models, and the one way from pydantic's errors to the project's."""

from ddpsim.documents.errors import document_error, format_value, join_errors, problems
from ddpsim.documents.model import Amount, Count, Document, File, Index, Number, Text, quantity, read_as
from ddpsim.documents.records import document_of
from ddpsim.fields import MOST_ITEMS

__all__ = [
    "MOST_ITEMS", "Amount", "Count", "Document", "File", "Index", "Number", "Text", "document_error", "document_of",
    "format_value", "join_errors", "problems", "quantity", "read_as",
]  # fmt: skip
