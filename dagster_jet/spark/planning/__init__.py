"""Analysis of a pipeline, before any row is read."""
