"""Ownership of a job: its record and lease, admission, liveness, and garbage."""
