"""What the analysis of a pipeline finds out, before any row is read."""
