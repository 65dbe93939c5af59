"""The simulation of training: from a workload, a machine and options to when everything in a step happens.

`resolve` looks everything up, or refuses it, and returns a `ResolvedJob`: which ranks are simulated, and a
`RankConfiguration` for each. `build` writes what such a rank does into a `StepGraph`: nodes (a kernel, a hook, a wait,
a collective), each on a resource of its rank and after other nodes. `run` executes that graph on SimPy and leaves its
`NodeTimes`, `record` makes a trace of them (`Iteration`, `BucketTimes`), `job_run` the period of a step. `retiming`
finds the periods of one run under many other constants, without running it again where that can be.

Read `engine.py` first: `run_job` resolves and runs a job, as predictions do, and `trace_of` makes its trace; `simulate`
is both in one call. Then `graph.py`, which has the nouns. `jobs` has
options and what of a workload each rank has: it comes before the graph.

Public modules: communication, contention, ddp_costs, engine, graph, job, job_run, jobs.beside, jobs.beside_file,
jobs.device_split, jobs.graph_cuts, jobs.job_options, jobs.pipeline, jobs.plans, jobs.representatives, jobs.simulated,
jobs.stages, jobs.torch_line, lanes, linear, parameter_servers, rank_builder, rank_config, record, resolve,
retiming.dependencies, retiming.prices, retiming.retime, run, scheduling.
"""
