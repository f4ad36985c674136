"""Observability: reports that a running job writes, their readers, and metrics."""
