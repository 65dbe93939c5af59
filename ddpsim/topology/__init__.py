"""Topologies: graphs of GPUs, switches, NICs and the links between them."""
