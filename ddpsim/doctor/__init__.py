"""What this machine and this installation can do, each line with the command that proves it."""
