"""Offsets, group metadata, states and headers in all the forms that callers may use."""

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as some

from dualwrite.content import as_bytes, as_headers, as_state
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import ConsumedOffset, by_topic
from dualwrite.prepared import PreparedTxnState

TEXT = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def test_offsets_as_topic_partitions_and_as_a_dict():
    expected = {"a": [ConsumedOffset(0, 5), ConsumedOffset(1, 7)], "b": [ConsumedOffset(2, 9)]}
    listed = [TopicPartition("a", 0, 5), TopicPartition("a", 1, 7), TopicPartition("b", 2, 9)]

    assert by_topic(listed) == expected
    assert by_topic({("a", 0): 5, ("a", 1): 7, ("b", 2): 9}) == expected
    assert (
        by_topic(
            {
                TopicPartition("a", 0): 5,
                TopicPartition("a", 1): 7,
                ("b", 2): TopicPartition("b", 2, 9),
            }
        )
        == expected
    )


def test_offsets_carry_metadata_and_leader_epoch():
    given = TopicPartition("a", 0, 5, metadata="note", leader_epoch=3)

    assert by_topic([given]) == {"a": [ConsumedOffset(0, 5, 3, "note")]}


def test_partitions_from_which_nothing_was_consumed_are_left_out():
    assert by_topic([TopicPartition("a", 0, -1001), TopicPartition("a", 1)]) == {}


@pytest.mark.parametrize("bad", ["text", b"bytes", [1], [("a", 0)], {("", 0): 1}, {("a", -1): 1}])
def test_offsets_that_cannot_be(bad):
    with pytest.raises((TypeError, ValueError)):
        by_topic(bad)


@given(TEXT, some.integers(-1, 2**31 - 1), TEXT, some.none() | TEXT)
def test_group_metadata_survives_librdkafkas_form(group, generation, member, instance):
    original = GroupMetadata(group, generation, member, instance)

    assert GroupMetadata.of(original.to_bytes()) == original


@given(some.binary(max_size=40))
def test_unknown_forms_of_group_metadata_are_refused(data):
    for form in (data, b"CGMDv1:" + data, b"CGMDv2:" + data):
        try:
            parsed = GroupMetadata.parse(form)
        except ValueError:
            continue
        assert parsed.to_bytes() == form


def test_states_by_text():
    assert as_state("7:42") == PreparedTxnState(7, 42)
    assert as_state("") == PreparedTxnState.NONE
    assert str(as_state("0:0")) == "0:0"
    with pytest.raises(TypeError):
        as_state(None)


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "7:",
        ":7",
        "7:42:1",
        " 7:42",
        "7:42\n",
        "-1:45",
        "123:-1",
        "٣:1",
        "9223372036854775808:0",
        "1:32768",
    ],
)
def test_texts_that_are_no_state(text):
    with pytest.raises(ValueError):
        as_state(text)


def test_headers_and_content():
    assert as_headers({"a": "x", "b": None}) == [("a", b"x"), ("b", None)]
    assert as_headers([("a", bytearray(b"x"))]) == [("a", b"x")]
    assert as_bytes("ü") == "ü".encode()
    with pytest.raises(TypeError):
        as_headers([(b"a", b"x")])
