"""What a message's value becomes: columns, for every source that reads messages."""

from dagster_jet.connectors.values.json_objects import JsonObjects

__all__ = ["JsonObjects"]
