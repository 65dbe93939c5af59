"""Predict the iteration latency of PyTorch DistributedDataParallel on hardware not bought yet."""

__version__ = "0.1.0"
