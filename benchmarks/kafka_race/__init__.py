"""Kafka to Kafka and Kafka to PostgreSQL: dagster_jet against Structured Streaming."""
