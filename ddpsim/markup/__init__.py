"""HTML made of elements: text is escaped, elements are not, so that no name of a file or model becomes markup."""

from ddpsim.markup.elements import Markup, element, joined
from ddpsim.markup.tables import SCREEN, summary_card, table

__all__ = ["SCREEN", "Markup", "element", "joined", "summary_card", "table"]
