"""Spark itself: sessions, executors, and where shards are."""
