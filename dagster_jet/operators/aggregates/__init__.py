"""Aggregates: computation of partials from rows, their merging, and results."""
