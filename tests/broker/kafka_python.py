"""kafka-python, whose import uses what Python 3.11 calls deprecated."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

__all__ = ["KafkaAdminClient", "KafkaConsumer", "KafkaProducer", "TopicPartition"]
