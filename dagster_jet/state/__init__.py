"""A shard's state between snapshots: runs, merging of runs, upload."""
