"""Connectors: one folder per outside system, with its sources and sinks."""
