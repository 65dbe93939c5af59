"""What may be asked of a training job, simulated or real, and of its collectives."""
