"""Gradient order: how far arrivals agree, what to expect next, and when to rebuild buckets for it.

Standard library only, shared by the simulator and the executor, like the bucketing policy it feeds.
"""
