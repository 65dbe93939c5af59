"""Workloads: one rank's iteration without communication, recorded from a real step or estimated from its operators.

Nouns: a capture is a step recorded on this machine (`capture`, `recorder`); an estimate is a step run on tensors
without memory, its operators counted and priced for a GPU that need not be here (`estimate`, `counting`, `operators`);
a phase is forward, backward or the optimizer; a `TrainingModel` is a module with its batch and its loss (`models`).

Both ways end in a `ddpsim.workload.Workload`.

Read first: `capture`, then `recorder`; for estimates `estimate`, then `counting`.

Public modules: capture, describe, estimate, fake, models, models.training, orders, own_step, phases.
"""
