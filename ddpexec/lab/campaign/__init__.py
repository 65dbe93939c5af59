"""A campaign: predictions written down before the runs they are held against, for a list of configurations."""
