"""Command line `dagster-jet`: prints tables, or JSON with ``--json``."""

from dagster_jet.cli.app import app

__all__ = ["app"]
