"""Delays at New York's airports, by the hour."""
