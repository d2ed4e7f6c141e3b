"""Messages wait in memory until the block ends, and vanish with their savepoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.group_metadata import GroupMetadata
from dualwrite.kept_messages import decode, encode
from dualwrite.offsets import ConsumedOffset
from dualwrite.transaction import ConsumedOffsets, Message, MessageBuffer


def values(buffer):
    return [entry.value for entry in buffer.entries]


def test_contents_are_taken_as_confluent_kafka_takes_them():
    buffer = MessageBuffer()

    buffer.produce("t", "ä", key=bytearray(b"k"), headers={"a": "1", "b": None})

    assert buffer.entries == [
        Message("t", "ä".encode(), b"k", -1, None, 0, (("a", b"1"), ("b", None)))
    ]


@pytest.mark.parametrize(
    "call",
    [
        {"topic": "t", "value": 5},
        {"topic": "t", "key": object},
        {"topic": "", "value": b""},
        {"topic": "t", "headers": [("a", 5)]},
        {"topic": "t", "headers": [(b"a", b"5")]},
    ],
    ids=str,
)
def test_wrong_object_fails_before_anything_is_sent(call):
    buffer = MessageBuffer()

    with pytest.raises(TypeError):
        buffer.produce(**call)

    assert len(buffer) == 0


def test_offsets_are_taken_from_a_dict_and_from_topic_partitions():
    from confluent_kafka import TopicPartition

    buffer = MessageBuffer()
    buffer.send_offsets({("t", 1): 5}, "g")
    noted = TopicPartition("t", 2, 6, metadata="note", leader_epoch=4)
    buffer.send_offsets([noted], GroupMetadata("g", 3, "m"))

    assert buffer.entries == [
        ConsumedOffsets({"t": [ConsumedOffset(1, 5)]}, GroupMetadata("g")),
        ConsumedOffsets({"t": [ConsumedOffset(2, 6, 4, "note")]}, GroupMetadata("g", 3, "m")),
    ]


def test_messages_of_a_rolled_back_savepoint_vanish():
    buffer = MessageBuffer()
    buffer.produce("t", b"1")
    buffer.savepoint_opened("a")
    buffer.produce("t", b"2")
    buffer.savepoint_opened("b")
    buffer.produce("t", b"3")
    buffer.savepoint_rolled_back("b")
    buffer.produce("t", b"4")

    assert values(buffer) == [b"1", b"2", b"4"]

    buffer.savepoint_rolled_back("a")
    buffer.produce("t", b"5")

    assert values(buffer) == [b"1", b"5"]


def test_savepoint_can_be_rolled_back_twice():
    buffer = MessageBuffer()
    buffer.savepoint_opened("a")
    buffer.produce("t", b"1")
    buffer.savepoint_rolled_back("a")
    buffer.produce("t", b"2")
    buffer.savepoint_rolled_back("a")

    assert values(buffer) == []


def test_rolling_back_an_outer_savepoint_takes_released_inner_ones_with_it():
    buffer = MessageBuffer()
    buffer.savepoint_opened("a")
    buffer.savepoint_opened("b")  # released without a word
    buffer.produce("t", b"1")
    buffer.savepoint_rolled_back("a")

    assert values(buffer) == []


contents = st.none() | st.binary(max_size=20)
messages = st.builds(
    Message,
    st.text(min_size=1, max_size=10),
    contents,
    contents,
    st.integers(-1, 2**31 - 1),
    st.none(),
    st.integers(0, 2**62),
    st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple),
)


@given(messages)
def test_kept_message_comes_back_as_it_was(message):
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_cut_copy_of_a_message_is_refused(message, data):
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(ValueError):
        decode(whole[:cut])
    with pytest.raises(ValueError):
        decode(whole + b"\0")
