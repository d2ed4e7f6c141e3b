"""What reads bytes from strangers, each as a function of bytes that must end in a value or a typed error.

Hypothesis and atheris feed the same functions. A target swallows the errors that its parser promises;
whatever else comes out of it is a finding.
"""

import itertools
import json
from contextlib import suppress

from dualwrite.broker.clock import Now
from dualwrite.broker.groups import records as group_records
from dualwrite.broker.security.credentials import Mechanism, ScramCredential
from dualwrite.broker.security.plain import PasswordCheck
from dualwrite.broker.security.sasl import SaslService, Stage
from dualwrite.broker.security.users import Users, credential_set, secret_record
from dualwrite.broker.transactions import records as transaction_records
from dualwrite.flows.scram import ScramClient, ScramError
from dualwrite.group_metadata import GroupMetadata
from dualwrite.owner import Owner
from dualwrite.prepared import PreparedTxnState
from dualwrite.recipes.console.records import shown
from dualwrite.wire.codec import decode
from dualwrite.wire.compression import Compression, CompressionError, decompress
from dualwrite.wire.frame import FrameReader, decode_request_header, decode_response_header
from dualwrite.wire.message import WireError, schema_of
from dualwrite.wire.records import BatchError, EndMarker, batches, check_batch, records_of
from tests.fuzz.samples import message_classes

DECOMPRESSED_MAX = 1 << 20
NOW = Now(1_700_000_000_000, 1_000)
REQUESTS = {
    (schema_of(cls).api_key, version): cls
    for cls, version in message_classes()
    if schema_of(cls).is_request
}


def request_frame(data):
    """A frame as the broker takes it: header, then the body that the header names."""
    with suppress(WireError):
        header, offset = decode_request_header(data)
        cls = REQUESTS.get((header.api_key, header.api_version))
        if cls is not None:
            decode(cls, data, header.api_version, offset)


def response_frame(data):
    """A frame as the client takes it; the first two bytes choose what it has asked for."""
    if len(data) < 2:
        return
    responses = [one for one in message_classes() if not schema_of(one[0]).is_request]
    cls, version = responses[int.from_bytes(data[:2]) % len(responses)]
    with suppress(WireError):
        _, offset = decode_response_header(data[2:], schema_of(cls).api_key, version)
        decode(cls, data[2:], version, offset)


def frames(data):
    """A stream of bytes, in pieces."""
    reader = FrameReader(1 << 16)
    with suppress(WireError):
        for start in range(0, len(data), 7):
            reader.feed(data[start : start + 7])
            assert reader.buffered <= (1 << 16) + 4


def record_batch(data):
    """What Produce brings, and what a fetch response or a segment holds."""
    with suppress(BatchError):
        check_batch(data)
        records_of(data, DECOMPRESSED_MAX)
    with suppress(BatchError):
        for position, header in batches(data, cut_tail=True):
            whole = data[position : position + header.length]
            with suppress(BatchError):
                records_of(whole, DECOMPRESSED_MAX)
            with suppress(BatchError):
                EndMarker.parse(whole)


def codec(data):
    """Every compression; the first byte chooses it."""
    if data:
        with suppress(CompressionError):
            number = data[0] % (len(Compression) + 1)
            assert len(decompress(number, data[1:], DECOMPRESSED_MAX)) <= DECOMPRESSED_MAX


def _service():
    users = Users()
    users.replay_meta(secret_record(bytes(32)))
    for mechanism in Mechanism:
        credential = ScramCredential.derive(mechanism, "secret", b"salt" * 4, 4096)
        users.replay_meta(credential_set("ann", credential))
    numbers = itertools.count()
    return SaslService(
        users=users,
        passwords=PasswordCheck(users, b"k" * 32, 1_000_000),
        mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
        new_nonce=lambda: f"server-nonce-{next(numbers):012}",
    )


SERVICE = _service()


def sasl_server(data):
    """A login as the broker sees it: mechanism, then messages divided by a line end."""
    if not data:
        return
    mechanism = SERVICE.mechanisms[data[0] % 3]
    connection = SERVICE.connection()
    connection.handshake(mechanism)
    for message in data[1:].split(b"\n")[:3]:
        connection.authenticate(message, NOW)
    assert connection.stage is not Stage.KNOWN or b"secret" in data or mechanism != "PLAIN"


def sasl_client(data):
    """A login as the client sees it, by a broker that may say anything."""
    first, _, final = data.partition(b"\n")
    client = ScramClient("SCRAM-SHA-256", "ann", "secret", "nonce")
    client.first()
    with suppress(ScramError):
        client.final(first.replace(b"i=", b"i=4096,x=", 1) if b"i=" in first else first)
        client.verify(final)


def prepared_state(data):
    """What a state table holds."""
    with suppress(ValueError):
        text = data.decode(errors="replace")
        assert str(PreparedTxnState.parse(text)).split(":")[0].lstrip("0") in text


def group_metadata(data):
    """librdkafka's opaque bytes."""
    with suppress(ValueError):
        assert GroupMetadata.parse(data).to_bytes() == data


def owner(data):
    """The owner column, written by any program."""
    Owner.parse(data.decode(errors="replace"))


def stored_records(data):
    """Records of `__transaction_state` and `__consumer_offsets`, which recovery reads back."""
    key, value = data[: len(data) // 4], data[len(data) // 4 :]
    for parse in (transaction_records.decode_record, group_records.parse):
        with suppress(WireError, UnicodeDecodeError):
            parse(key, value)


def shown_record(data):
    """A record in the console: text, bounded, without control characters."""
    text = shown(data)
    assert len(text) <= 2001
    assert all(c.isprintable() or c in "\n\t" for c in text)
    json.dumps(text)


TARGETS = {
    target.__name__: target
    for target in (
        request_frame,
        response_frame,
        frames,
        record_batch,
        codec,
        sasl_server,
        sasl_client,
        prepared_state,
        group_metadata,
        owner,
        stored_records,
        shown_record,
    )
}
