"""Workloads and buckets out of torch.profiler's Kineto traces.

Five steps, a file each: `events` reads operators, launches and kernels; `steps` finds iterations, phases and DDP's own
work on the host; `mapping` says which parameter each gradient is of; `replay` moves the device's work to where it is
without DDP; `workload` puts the results together. `iterations` reads the same steps with their collectives in, for
`ddpsim explain`.
"""
