"""Exported snapshots: requested, copied, kept under a name until deleted."""
