"""RabbitMQ queues as a source. Messages are acknowledged once a snapshot contains them."""

from dagster_jet.connectors.rabbitmq.rabbitmq_source import RabbitSource

__all__ = ["RabbitSource"]
