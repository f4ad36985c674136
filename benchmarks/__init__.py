"""Races and measurements. `python -m benchmarks --help`; rules in benchmarks/README.md."""
