"""Names and signatures of the Spark recipe; what it does is tested with Spark elsewhere."""

import inspect

import pytest

from dualwrite import ConfigurationError
from dualwrite.recipes.spark import KafkaSink, register
from dualwrite.recipes.spark.names import coordinator_id, decision_topic, slot_id
from dualwrite.recipes.spark.options import SinkOptions


def test_signatures():
    """`register(spark)`, `KafkaSink(sink, config, decisions=)`, `foreach_batch(also=, checkpoint=)`."""
    assert list(inspect.signature(register).parameters) == ["spark"]
    sink = inspect.signature(KafkaSink).parameters
    assert list(sink)[2] == "decisions" or "decisions" in sink
    assert sink["decisions"].default is None
    batch = inspect.signature(KafkaSink.foreach_batch).parameters
    assert batch["also"].default is None
    assert batch["checkpoint"].default is False


def test_names_in_kafka():
    """Ids and the topic of decisions follow from the sink's name."""
    assert slot_id("orders", 3, 0) == "spark.orders.3.0"
    assert coordinator_id("orders") == "spark.orders.coordinator"
    assert decision_topic("orders") == "__dualwrite_decisions.orders"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 101, None, 5])
def test_names_of_sinks(name):
    """A sink's name has 1 to 100 letters, digits, underscores and hyphens."""
    with pytest.raises(ConfigurationError):
        KafkaSink(name, {"bootstrap.servers": "h:1"})


def test_also_needs_a_database():
    """A second write per batch needs the decisions in the database that it writes to."""
    with pytest.raises(ConfigurationError):
        KafkaSink("orders", {"bootstrap.servers": "h:1"}).foreach_batch(also=lambda *_: None)


def test_function_for_foreach_batch():
    """Gives a function of a frame and the batch's number."""
    function = KafkaSink("orders", {"bootstrap.servers": "h:1"}).foreach_batch()
    assert len(inspect.signature(function).parameters) == 2


def test_format_is_called_dualwrite():
    """`format("dualwrite")`, for writing and reading."""
    from dualwrite.recipes.spark.data_source import make_source

    assert make_source().name() == "dualwrite"
    assert SinkOptions.__name__
