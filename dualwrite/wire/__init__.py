"""Kafka's wire format: frames, messages and record batches, without IO."""
