"""The main job, end to end: buckets planned for machines one does not have, then a prediction beside a real run."""
