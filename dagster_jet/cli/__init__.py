"""The command line: `dagster-jet`. Tables for people, ``--json`` for programs."""

from dagster_jet.cli.app import app

__all__ = ["app"]
