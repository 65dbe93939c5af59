"""Buckets that tune themselves while a training script runs: observe, predict every cap, try the best, keep or not."""
