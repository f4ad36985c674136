"""Conversion of message values to columns, for every source that reads messages."""

from dagster_jet.connectors.values.json_objects import JsonObjects
from dagster_jet.connectors.values.raw import RawValues

__all__ = ["JsonObjects", "RawValues"]
