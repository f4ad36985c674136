"""Generated streams: deterministic, replayable, at a rate.

It imports nothing: a benchmark reads NEXMark's columns where this package is not installed.
"""
