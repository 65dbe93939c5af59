"""Gloo as PyTorch uses it: a ring over TCP.

`transport.py` has all of it: the schedules of torch's operations, the ways between two ranks, `GlooTransport`, and what
a fitted launch means in a group of fewer ranks.
"""
