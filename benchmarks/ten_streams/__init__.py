"""Streams in one code location for an hour: memory, ticks, growth of Dagster's storage, a kill."""
