"""From the traces of a running job to where its step goes, who is late, and what would change it."""
