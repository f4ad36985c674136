"""Mergeable partial values: what an aggregate keeps between rows and result, one kind per file."""
