"""Process groups: what ranks reach each other by, how torchrun starts them, and what happens when one is lost."""
