"""Streams that are made, not read: deterministic, replayable, at a rate.

Nothing is imported here: a benchmark reads NEXMark's columns where this package is not installed.
"""
