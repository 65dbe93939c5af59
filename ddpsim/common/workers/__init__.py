"""Workers compute the points of a sweep: pools of processes or of a cluster, their loop, and the journal of answers."""
