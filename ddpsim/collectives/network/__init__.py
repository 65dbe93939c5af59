"""The network: messages in flight on links, which they share max-min fair.

A `Demand` is what one message asks: a latency, bytes, loads on links. `fairness` has the rates of several demands at
one moment, without time; `fluid` has the `Network`, in SimPy, which asks for them again whenever a message joins or
leaves.

Read `fairness.py` first.
"""
