"""Kits that users run against their own members, connectors and pipelines."""

from dagster_jet.testing.check_member import check_member
from dagster_jet.testing.failpoints import FailPoints

__all__ = ["FailPoints", "check_member"]
