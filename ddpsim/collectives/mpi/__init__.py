"""Open MPI's collectives on tensors in host memory, over TCP or shared memory."""
