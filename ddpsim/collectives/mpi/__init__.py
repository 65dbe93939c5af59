"""Open MPI's collectives on tensors in host memory, over TCP or shared memory.

`transport.py` has all of it: which algorithm `coll/tuned` picks, the ways between two ranks, and `MpiTransport`, which
carries that algorithm's schedule out as a pattern.
"""
