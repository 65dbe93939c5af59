"""Workloads and buckets out of torch.profiler's Kineto traces."""
