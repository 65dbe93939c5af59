"""Schedules: what an iteration sends, when, and what waits for it, as data that both packages carry out.

A scheme is a function from a setup to a schedule (`schemes`); `ddpsim.bucketing.LaunchQueue` is the rule by which a
rank, simulated or real, launches a schedule's messages and waits for them.
"""
