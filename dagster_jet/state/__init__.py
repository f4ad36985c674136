"""A shard's state between snapshots: runs, their merging, their upload."""
