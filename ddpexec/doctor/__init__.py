"""What this torch and this machine's networks can do for real runs."""
