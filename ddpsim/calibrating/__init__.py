"""Fits: a transport's constants from measured allreduce tables."""
