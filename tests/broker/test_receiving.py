"""Frames received in shared and in lasting memory: every split, and no byte that changes under a reader."""

import random
import ssl
import struct

import pytest

from dualwrite.broker import Broker
from dualwrite.broker.receiving import LARGE_MISSING, SHARED_BYTES, SLAB_BYTES, Buffers, Receiver
from dualwrite.wire.message import WireError
from tests.broker.raw_client import RawClient, batch, produce_request, values_of
from tests.security.authority import Authority

PRODUCE = 0
LARGE = 3 * LARGE_MISSING


@pytest.fixture
def buffers():
    return Buffers(12 * SLAB_BYTES)


@pytest.fixture
def receiver(buffers):
    made = Receiver(buffers)
    made.allow(1 << 24)
    return made


def framed(*frames):
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def feed(receiver, data, sizes):
    """Deliver `data` in pieces of these sizes at most, as a loop does; gives what comes out."""
    found = []
    position = 0
    while position < len(data):
        room = receiver.room
        count = min(len(room), next(sizes), len(data) - position)
        room[:count] = data[position : position + count]
        position += count
        found += receiver.received(count)
    return found


def constantly(size):
    while True:
        yield size


def test_small_frames_may_be_split_anywhere(receiver):
    frames = [b"", b"a", bytes(range(100)), b"xyz"]
    data = framed(*frames)
    for split in range(1, len(data)):
        assert feed(receiver, data, iter([split, len(data)])) == frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_all_sizes_may_come_in_pieces_of_all_sizes(receiver, seed):
    chance = random.Random(seed)
    frames = []
    for _ in range(8):
        size = chance.choice([0, 1, 50, LARGE_MISSING, LARGE, SHARED_BYTES, SLAB_BYTES + 1])
        frames.append(chance.randbytes(size + chance.randrange(5)))
    most = chance.choice([10_000, 100_000, SLAB_BYTES])

    found = feed(receiver, framed(*frames), iter(lambda: chance.randint(1, most), None))

    assert found == frames


def test_a_large_frame_may_be_split_around_each_of_its_ends(receiver):
    data = framed(b"before", bytes(LARGE), b"behind")
    begin, end = 10, 10 + 4 + LARGE
    for split in [*range(begin - 6, begin + 8), *range(end - 6, end + 8)]:
        found = feed(receiver, data, iter([split, *[LARGE_MISSING] * 10]))
        assert [bytes(frame) for frame in found] == [b"before", bytes(LARGE), b"behind"]


def test_a_large_frame_stays_where_it_arrived(receiver):
    (frame,) = feed(receiver, framed(bytes(LARGE)), constantly(10_000))

    assert isinstance(frame, memoryview)
    assert not frame.readonly


def test_a_slab_serves_again_only_when_nobody_looks_at_it(receiver):
    (first,) = feed(receiver, framed(b"1" * LARGE), constantly(10_000))
    part_of_first = first[1000:2000]
    slab = first.obj
    del first
    (second,) = feed(receiver, framed(b"2" * LARGE), constantly(10_000))
    assert second.obj is not slab
    assert part_of_first == b"1" * 1000

    del part_of_first, second
    places = set()
    for _ in range(4):
        (frame,) = feed(receiver, framed(b"3" * LARGE), constantly(10_000))
        places.add(id(frame.obj))
        del frame
    assert id(slab) in places
    assert len(places) == 2


def test_without_slabs_frames_come_in_pieces(receiver, buffers):
    kept = [buffers.slab() for _ in range(12)]
    assert buffers.slab() is None

    (frame,) = feed(receiver, framed(b"x" * LARGE), constantly(10_000))

    assert frame == b"x" * LARGE
    assert isinstance(frame, bytes)
    del kept


def test_slabs_in_use_do_not_hide_those_that_are_free(buffers):
    kept = [buffers.slab() for _ in range(12)]
    del kept[3]
    assert any(buffers.slab() is not None for _ in range(12))


def test_what_is_not_in_use_is_freed(receiver, buffers):
    (frame,) = feed(receiver, framed(b"1" * LARGE), constantly(10_000))
    del feed(receiver, framed(b"2" * LARGE), constantly(10_000))[0]
    buffers.trim()
    assert len(buffers._slabs) == 1
    assert frame == b"1" * LARGE
    del frame
    buffers.trim()
    assert not buffers._slabs


def test_a_lost_connection_keeps_no_slab(receiver, buffers):
    assert feed(receiver, framed(bytes(LARGE))[:-1], constantly(10_000)) == []
    receiver.drop()
    buffers.trim()
    assert not buffers._slabs


def test_a_size_that_is_too_large_ends_the_stream(buffers):
    stranger = Receiver(buffers)  # whose frames must be small until it says who it is
    with pytest.raises(WireError):
        feed(stranger, framed(bytes(LARGE)), constantly(10_000))
    assert not buffers._slabs


def produce_and_compare(connect, topic):
    """Batches of many sizes are read back as they were sent, from memory and from segments, while
    further ones arrive where the first ones lay."""
    chance = random.Random(1)
    sent = [chance.randbytes(chance.choice([10, 70_000, 300_000, 1_000_000])) for _ in range(150)]
    seen = 0
    with connect() as producer, connect() as reader:
        for number, value in enumerate(sent):
            producer.send(produce_request(topic, batch(value)), 11)
            if number % 10 == 9:
                seen += compare(reader, topic, max(0, number - 20), sent)
                for _ in range(10):
                    answer = producer.receive(PRODUCE, 11)[1].responses[0].partition_responses[0]
                    assert answer.error_code == 0
        assert seen
        offset = 0
        while offset < len(sent):
            offset += compare(reader, topic, offset, sent)


def compare(reader, topic, offset, sent):
    """Says how many values were there, all of them right."""
    values = values_of(reader.fetch(topic, offset))
    assert values == sent[offset : offset + len(values)]
    return len(values)


def test_batches_are_read_back_while_others_arrive(bootstrap, topic):
    produce_and_compare(lambda: RawClient(bootstrap), topic)


def test_batches_are_read_back_while_others_arrive_over_tls(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    context = ssl.create_default_context(cafile=str(authority.ca))

    def connect():
        made = RawClient(broker.bootstrap_servers)
        made.socket = context.wrap_socket(made.socket, server_hostname="localhost")
        return made

    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    with Broker(settings=settings) as broker:
        with connect() as client:
            client.create_topic("t")
        produce_and_compare(connect, "t")
