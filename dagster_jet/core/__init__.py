"""Base modules without dependencies: partitions, window frames, guarantees, durations, schemas.

Standard library only.
"""
