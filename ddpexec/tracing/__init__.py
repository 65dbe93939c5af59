"""`ddpexec.trace`: a user's own training loop traced while it runs, with files for Perfetto and a line a hundred steps.

Nouns: a subject is the traced module with whatever reduces its gradients (torch's DDP, ours, `fully_shard`, nothing); a
session is one traced loop with its files; the exchange carries what ranks tell each other over the store, on a thread.

Every 20th step is stamped, of the others only the start. Nothing here ends the training: an error is warned of once,
and the loop goes on untraced.

Read first: `tracer`, then `session`.

Public modules: loop, subjects, tracer.
"""
