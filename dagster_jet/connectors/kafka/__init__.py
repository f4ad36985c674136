"""Kafka topics as sources by offset, and as sinks by transaction."""

from dagster_jet.connectors.kafka.held_sink import HeldKafkaSink
from dagster_jet.connectors.kafka.kafka_sink import KafkaSink
from dagster_jet.connectors.kafka.kafka_source import KafkaSource

__all__ = ["HeldKafkaSink", "KafkaSink", "KafkaSource"]
