"""Laws that a simulated step must keep, over random jobs."""
