"""Aggregates: how rows become partials, partials merge, and results come out."""
