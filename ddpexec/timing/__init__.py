"""Moments of a training step: clocks of host and device, stamps taken without waiting, and the records made of them.

Nouns: a moment is a host time, on a GPU with a CUDA event; an `Observer` takes moments while a rank trains, into a
`Note` for each iteration; `Records` turns notes into the `Iteration`s and spans of a trace after the steps.

A stamp never synchronises the device: events are read when the steps are over. Ranks' clocks are aligned with rank 0's.

Read first: `clock`, then `observe` and `records`.

Public modules: clock, observe, records, stamping, stopwatch, waiting.
"""
