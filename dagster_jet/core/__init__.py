"""Leaves that everything stands on: partitions, window frames, guarantees, durations, schemas.

Standard library only.
"""
