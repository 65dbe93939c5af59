"""Plans: which buckets to use where, and what they gain."""
