"""The wrapper of schemes by its older name, and torch's own `fully_shard`, watched at work."""
