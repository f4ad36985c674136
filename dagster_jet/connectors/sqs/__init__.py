"""SQS's queues as a source: messages are deleted once a snapshot has them."""

from dagster_jet.connectors.sqs.source import SqsSource

__all__ = ["SqsSource"]
