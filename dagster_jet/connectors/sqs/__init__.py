"""SQS queues as a source. Messages are deleted once a snapshot contains them."""

from dagster_jet.connectors.sqs.sqs_source import SqsSource

__all__ = ["SqsSource"]
