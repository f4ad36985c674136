"""Spark itself: sessions, executors, and placement of shards."""
