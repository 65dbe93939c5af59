"""Data parallel training by any schedule, with torch's own constructor, in Python over process groups.

Nouns: a schedule is messages and what each waits for; DDP's buckets are one schedule (`bucket_schedule`), a scheme's
messages another (`scheme_schedule`), and both are an `ActiveSchedule`. The `Executor` turns autograd's hooks into
arrivals of gradients, the `Launcher` asks `ddpsim.bucketing.LaunchQueue` which message may go, and a
`CommunicationStream` carries its messages in the same order on every rank.

What decides when a message may go stands in ddpsim, not here: the simulator uses the same code.

Read first: `wrapper`, `executor`, `launcher`; then `messages` for schemes.

Public modules: comm_hooks, compiling, compression, compression.codecs, compression.feedback, compression.schemes, drop,
flat, fully_sharded, hooks, parameter_servers, parameters, planner, scheduled_wrapper, updates, wrapper.
"""
