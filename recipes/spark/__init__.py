"""Exactly-once Kafka for Spark Structured Streaming, by two-phase commit (KIP-939)."""
