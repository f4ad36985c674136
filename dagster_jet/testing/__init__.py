"""Kits that users run against their own members, connectors and pipelines."""

from dagster_jet.testing.check_member import check_member
from dagster_jet.testing.failpoints import FailPoints
from dagster_jet.testing.servers import AwsServer, RedisServer
from dagster_jet.testing.verify_processor import verify_processor

__all__ = ["AwsServer", "FailPoints", "RedisServer", "check_member", "verify_processor"]
