"""What is asked of a training job, and what of it each rank has: all that is known before there is a graph.

`job_options.JobOptions` are the options that simulator and executor understand alike, `simulated.Options` adds those
of a simulated run. A `RankKind` is ranks that behave alike, a `SimulatedRank` the one that stands for them
(`representatives`). A `ModelPart` is what a rank of a pipeline has of the model (`stages`), `Plans` are the buckets of
each iteration (`plans`), and `updates` says where the optimizer runs, and what waits for it.

Read `simulated.py` first.
"""
