"""kafka-python, whose import uses what Python 3.11 calls deprecated."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata, TopicPartition

__all__ = ["KafkaConsumer", "OffsetAndMetadata", "TopicPartition"]
