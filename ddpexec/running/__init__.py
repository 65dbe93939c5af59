"""Real runs: a model trained on this rank as asked, ours or stock torch, and traced."""
