"""RabbitMQ queues as a source. Messages are acknowledged once a snapshot contains them."""

from dagster_jet.connectors.rabbitmq.source import RabbitSource

__all__ = ["RabbitSource"]
