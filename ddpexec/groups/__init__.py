"""Process groups: how this rank was launched, which ranks it reaches and how, and what happens when one is lost.

Nouns: a `Communicator` is the process groups of one job (`process_groups`); a launched rank is this process with its
device and its communicator (`launched`); a note is what a rank leaves in the store for the others when it fails
(`notes`).

A collective that fails names an address at best. `lost` finds which rank is gone, and every wait in this room has a
limit (`timeouts`, `threads`), so that no rank hangs because another died. `mpi_group` is a backend of torch over MPI.

Read first: `launched`, then `process_groups` and `lost`.

Public modules: environment, launched, lost, notes, process_groups, send_rate, termination, threads, timeouts.
"""
