"""RabbitMQ's queues as a source: messages are acknowledged once a snapshot has them."""

from dagster_jet.connectors.rabbitmq.source import RabbitSource

__all__ = ["RabbitSource"]
