"""Planning of the source, without a broker."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.offsets import (
    OffsetRange,
    clamp,
    from_json,
    limit_rows,
    losses,
    parse_assign,
    parse_offsets,
    ranges,
    require_all,
    split,
    to_json,
)
from dualwrite.recipes.spark.source_options import parse_source

partitions = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))
spans = st.dictionaries(
    partitions, st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1
)


@settings(deadline=None)
@given(st.dictionaries(partitions, st.integers(0, 2**62), min_size=1))
def test_offsets_survive_the_checkpoint(offsets):
    assert from_json(to_json(offsets)) == offsets


@settings(deadline=None)
@given(spans, st.integers(1, 30_000))
def test_a_limited_batch_moves_every_partition_with_data_and_not_past_its_end(found, rows_max):
    start = {p: begin for p, (begin, _) in found.items()}
    end = {p: begin + length for p, (begin, length) in found.items()}

    limited = limit_rows(start, end, rows_max)

    for p in found:
        assert start[p] <= limited[p] <= end[p]
        assert limited[p] > start[p] or start[p] == end[p]
    taken = sum(limited[p] - start[p] for p in found)
    assert taken <= rows_max + len(found)


@settings(deadline=None)
@given(spans, st.integers(0, 50))
def test_split_ranges_cover_the_same_offsets_in_order(found, parts_min):
    whole = ranges(
        {p: begin for p, (begin, _) in found.items()},
        {p: begin + length for p, (begin, length) in found.items()},
    )

    pieces = split(whole, parts_min)

    assert all(len(piece) > 0 for piece in pieces)
    for one in whole:
        mine = [p for p in pieces if (p.topic, p.partition) == (one.topic, one.partition)]
        assert mine[0].start == one.start
        assert mine[-1].end == one.end
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))


def test_what_the_log_has_lost_is_said():
    start = {("t", 0): 5, ("t", 1): 9, ("t", 2): 3, ("t", 3): 4}
    end = {("t", 0): 20, ("t", 1): 2, ("t", 3): 4}

    said = losses(start, end, {("t", 0): 10, ("t", 1): 0, ("t", 3): 4})

    assert [s.split(" ")[0] for s in said] == ["t-0", "t-1", "t-2"]
    assert clamp(start, end, {("t", 0): 10}) == {("t", 0): 10, ("t", 1): 2, ("t", 3): 4}


def test_an_offset_at_the_end_of_an_emptied_log_is_no_loss():
    assert losses({("t", 0): 5}, {("t", 0): 5}, {("t", 0): 7}) == []


def test_ranges_leave_out_what_is_empty():
    assert ranges({("t", 0): 1, ("t", 1): 4}, {("t", 0): 1, ("t", 1): 6}) == [
        OffsetRange("t", 1, 4, 6)
    ]


@pytest.mark.parametrize(
    "text",
    ["", "latest?", "[]", "{}", '{"t": 1}', '{"t": {"x": 1}}', '{"t": {"0": "1"}}', '{"t": {}}'],
)
def test_bad_offsets_are_refused(text):
    with pytest.raises(ConfigurationError, match="must be JSON"):
        parse_offsets("startingOffsets", text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"t": 1}', '{"t": [-1]}', '{"t": ["0"]}'])
def test_bad_assignments_are_refused(text):
    with pytest.raises(ConfigurationError, match="assign must be"):
        parse_assign(text)


def test_specific_offsets_name_every_partition():
    with pytest.raises(ConfigurationError, match="missing"):
        require_all("startingOffsets", {("t", 0): 1}, [("t", 0), ("t", 1)])


SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one of"),
        ({"subscribe": "a", "assign": "{}"}, "exactly one of"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "a", "startingOffset": "latest"}, "unknown option"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "startingOffsets instead"),
        ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"subscribe": "a", "kafka.key.deserializer": "x"}, "Java client"),
        ({"subscribe": "a", "kafka.interceptor.classes": "x"}, "Java client"),
        ({"subscribe": "a", "endingOffsets": "latest"}, "a stream has no end"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "above 0"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "duration"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "milliseconds"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "error or latest"),
    ],
)
def test_bad_options_of_a_stream_are_named(options, said):
    with pytest.raises(ConfigurationError, match=said):
        parse_source({**SERVERS, **options}, is_streaming=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "cannot be earliest"),
    ],
)
def test_bad_options_of_a_batch_are_named(options, said):
    with pytest.raises(ConfigurationError, match=said):
        parse_source({**SERVERS, "subscribe": "a", **options}, is_streaming=False)


def test_options_are_those_of_sparks_own_source():
    options = parse_source(
        {
            **SERVERS,
            "subscribePattern": "orders-.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "5m",
            "minPartitions": "7",
            "includeHeaders": "true",
            "failOnDataLoss": "false",
            "kafka.fetch.max.wait.ms": "20",
        },
        is_streaming=True,
    )

    assert options.kafka == {"bootstrap.servers": "localhost:9092", "fetch.wait.max.ms": "20"}
    assert (options.pattern, options.starting, options.rows_max) == ("orders-.*", "earliest", 100)
    assert (options.rows_min, options.delay_seconds_max) == (10, 300)
    assert (options.partitions_min, options.has_headers, options.fails_on_loss) == (7, True, False)
