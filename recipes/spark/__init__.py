"""Exactly-once Kafka for Spark Structured Streaming, by two-phase commit (KIP-939)."""

from dualwrite.recipes.spark.data_source import register
from dualwrite.recipes.spark.foreach_batch import KafkaSink
from dualwrite.recipes.spark.java import ensure_java

__all__ = ["KafkaSink", "ensure_java", "register"]
