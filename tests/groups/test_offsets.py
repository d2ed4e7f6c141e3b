"""Offsets: commits and who may make them, pending ones of open transactions, expiry, deletion."""

import pytest

from dualwrite.broker.groups.records import Kind, OffsetKey, OffsetValue, make
from dualwrite.wire.codec import encode
from dualwrite.wire.error_codes import ErrorCode as E
from dualwrite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from dualwrite.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.groups.harness import PARTITION, Broker, Generation

NOTHING = (E.NONE, -1)
UNSTABLE = (E.UNSTABLE_OFFSET_COMMIT, -1)
DAY_MS = 86_400_000


@pytest.fixture
def broker():
    return Broker()


def subscription(*topics):
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def delete(broker, topic="t", partition=0, group="g"):
    asked = [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(partition)])]
    response = broker.reply(broker.ask("offset_delete", OffsetDeleteRequest(group, asked)))
    return response.error_code or response.topics[0].partitions[0].error_code


def delete_group(broker, group="g"):
    error, decision = broker.groups.delete_group(group, broker.now)
    broker.settle(decision)
    return error


class TestCommits:
    def test_metadata_and_leader_epoch_come_back(self, broker):
        broker.commit(42, metadata="zürich")
        broker.restart()
        asked = [OffsetFetchRequestTopics("t", bytes(16), [0, 1])]
        response = broker.groups.offset_fetch(OffsetFetchRequestGroup("g", topics=asked), True)
        found, missing = response.topics[0].partitions

        assert (found.committed_offset, found.committed_leader_epoch) == (42, 3)
        assert found.metadata == "zürich"
        assert (missing.error_code, missing.committed_offset, missing.metadata) == (0, -1, "")

    def test_metadata_has_a_limit_in_bytes(self, broker):
        assert broker.commit(1, metadata="é" * 2048) == E.NONE
        assert broker.commit(2, metadata="é" * 2049) == E.OFFSET_METADATA_TOO_LARGE
        assert broker.fetch() == (0, 1)

    @pytest.mark.parametrize("version", [9, 10])
    def test_topics_by_name_and_by_id(self, broker, version):
        assert broker.commit(5, topic="u", version=version) == E.NONE
        by_id = [OffsetFetchRequestTopics("", broker.topics.get("u").id, [0])]
        response = broker.groups.offset_fetch(OffsetFetchRequestGroup("g", topics=by_id), True)

        assert response.topics[0].topic_id == broker.topics.get("u").id
        assert response.topics[0].partitions[0].committed_offset == 5

    def test_unknown_places(self, broker):
        unknown = [OffsetFetchRequestTopics("", b"x" * 16, [0])]
        response = broker.groups.offset_fetch(OffsetFetchRequestGroup("g", topics=unknown), True)

        assert broker.commit(1, topic="nowhere") == E.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.commit(1, partition=4) == E.UNKNOWN_TOPIC_OR_PARTITION
        assert response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID
        assert broker.fetch(group="unknown") == NOTHING

    def test_all_topics(self, broker):
        broker.commit(1, topic="t", partition=1)
        broker.commit(2, topic="u", partition=0)
        broker.txn_commit(3, topic="t", partition=2)
        broker.txn_commit(4, topic="u", partition=0)

        assert broker.fetch_all() == {("t", 1): (0, 1), ("u", 0): (0, 2)}
        assert broker.fetch_all(stable=True) == {("t", 1): (0, 1), ("u", 0): UNSTABLE}

    @pytest.mark.parametrize("version", range(5))
    def test_every_stored_version_is_read(self, broker, version):
        value = OffsetValue(offset=9, metadata="m", commit_timestamp=broker.now.wall_ms)
        key = make(Kind.OFFSET, OffsetKey("g", "t", 0), None).key
        data = version.to_bytes(2, "big") + encode(value, version)
        broker.groups.replay(PARTITION, key, data, 0, broker.now)

        assert broker.fetch() == (0, 9)


class TestWhoMayCommit:
    """The rules for classic groups, OffsetCommit and TxnOffsetCommit side by side."""

    @pytest.mark.parametrize(
        ("member", "generation", "instance", "plain", "transactional"),
        [
            ("self", 0, None, E.NONE, E.NONE),
            ("self", 1, None, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION),
            ("self", -1, None, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION),
            ("other", 0, None, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
            ("self", 0, "i", E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
            # Nothing said: a transactional commit from before KIP-447 can't be checked.
            ("", -100, None, E.UNKNOWN_MEMBER_ID, E.NONE),
        ],
    )
    def test_stable_group(self, broker, member, generation, instance, plain, transactional):
        group = Generation(broker, 1)
        who = {
            "member": group.members[0] if member == "self" else member,
            "generation": max(-1, group.number + generation),
            "instance": instance,
        }
        assert broker.commit(1, **who) == plain
        assert broker.txn_commit(1, **who) == transactional

    def test_another_instance_is_fenced(self, broker):
        first = broker.reply(broker.join(instance="a"))
        broker.sync(first.member_id, 1, {first.member_id: b""})
        broker.reply(broker.join(instance="a"))
        who = {"member": first.member_id, "generation": 1, "instance": "a"}

        assert broker.commit(1, **who) == E.FENCED_INSTANCE_ID
        assert broker.txn_commit(1, **who) == E.FENCED_INSTANCE_ID

    def test_during_a_rebalance(self, broker):
        token, member = broker.newcomer()
        generation = broker.reply(token).generation_id

        assert broker.commit(1, member, generation) == E.REBALANCE_IN_PROGRESS
        assert broker.txn_commit(1, member=member, generation=generation) == E.NONE

    @pytest.mark.parametrize(
        ("generation", "version", "plain"),
        [(-1, 9, E.NONE), (3, 8, E.ILLEGAL_GENERATION), (3, 9, E.GROUP_ID_NOT_FOUND)],
    )
    def test_unknown_group(self, broker, generation, version, plain):
        assert broker.commit(1, generation=generation, version=version, member="m") == plain

    @pytest.mark.parametrize(
        ("generation", "version", "code"),
        [(-1, 3, E.NONE), (3, 5, E.ILLEGAL_GENERATION), (3, 6, E.GROUP_ID_NOT_FOUND)],
    )
    def test_unknown_group_in_a_transaction(self, broker, generation, version, code):
        assert broker.txn_commit(1, generation=generation, version=version) == code

    def test_empty_group_takes_commits_from_outside(self, broker):
        group = Generation(broker, 1)
        broker.leave(group.members[0])

        assert broker.commit(1) == E.NONE
        assert broker.txn_commit(1) == E.NONE


class TestTransactions:
    def test_commit_is_seen_at_once_after_the_marker(self, broker):
        """R5: there is no moment at which the transaction has ended and its offsets are missing."""
        broker.commit(1)
        assert broker.txn_commit(2) == E.NONE
        assert broker.fetch() == UNSTABLE
        assert broker.fetch(stable=False) == (0, 1)
        broker.end_transaction(1, commit=True)

        assert broker.fetch() == (0, 2)

    def test_reader_of_stable_offsets_never_sees_the_old_one_of_an_open_transaction(self, broker):
        """R10: an old offset in place of "wait" would make the next owner process twice."""
        broker.commit(1)
        broker.txn_commit(2)
        seen = [broker.fetch()]
        broker.restart()
        seen.append(broker.fetch())
        broker.end_transaction(1, commit=True)
        seen.append(broker.fetch())
        broker.restart()
        seen.append(broker.fetch())

        assert seen == [UNSTABLE, UNSTABLE, (0, 2), (0, 2)]

    def test_abort_leaves_the_old_offset(self, broker):
        broker.commit(1)
        broker.txn_commit(2)
        broker.end_transaction(1, commit=False)

        assert broker.fetch() == (0, 1)

    def test_pending_offset_of_an_unknown_group_is_unstable_too(self, broker):
        broker.txn_commit(2, group="new")

        assert broker.fetch(group="new") == UNSTABLE
        assert broker.fetch(group="new", partition=1) == NOTHING

    def test_later_plain_commit_wins_over_an_earlier_transactional_one(self, broker):
        broker.txn_commit(2)
        broker.commit(7)
        broker.end_transaction(1, commit=True)

        assert broker.fetch() == (0, 7)

    def test_two_producers_at_the_same_place(self, broker):
        broker.txn_commit(2, producer_id=1)
        broker.txn_commit(3, producer_id=2)
        broker.end_transaction(1, commit=True)
        assert broker.fetch() == UNSTABLE
        assert broker.fetch(stable=False) == (0, 2)
        broker.end_transaction(2, commit=True)

        assert broker.fetch() == (0, 3)

    def test_a_marker_is_about_its_own_partition_only(self, broker):
        broker.txn_commit(2, producer_id=1)
        broker.groups.replay_marker(PARTITION + 1, 1, True)

        assert broker.fetch() == UNSTABLE

    def test_prepared_transaction_blocks_readers_and_pins_the_group_for_ever(self, broker):
        """T-8 c and d: nothing but the end of the transaction frees the offsets."""
        broker.commit(1)
        broker.commit(1, partition=1)
        broker.txn_commit(2)
        for _ in range(4):
            broker.pass_time(30 * DAY_MS)
            broker.restart()
            assert broker.fetch() == UNSTABLE
        assert broker.fetch(partition=1) == NOTHING  # expired: no transaction holds it
        assert delete_group(broker) == E.NON_EMPTY_GROUP
        assert delete(broker) == E.UNSTABLE_OFFSET_COMMIT
        broker.end_transaction(1, commit=True)

        assert broker.fetch() == (0, 2)
        assert delete_group(broker) == E.NONE

    def test_topic_deletion_takes_pending_offsets_along(self, broker):
        broker.commit(1, topic="u")
        broker.txn_commit(2)
        broker.txn_commit(3, topic="u")
        for decision in broker.groups.topic_deleted("t", broker.now):
            broker.settle(decision)
        broker.end_transaction(1, commit=True)

        assert broker.fetch() == NOTHING
        assert broker.fetch(topic="u") == (0, 3)


class TestExpiry:
    RETENTION_MS = 7 * DAY_MS

    def test_simple_group_expires_by_its_commits_and_disappears(self, broker):
        broker.commit(1)
        broker.pass_time(self.RETENTION_MS // 2)
        broker.commit(2, partition=1)
        broker.pass_time(self.RETENTION_MS // 2 + DAY_MS)
        assert broker.fetch_all() == {("t", 1): (0, 2)}
        broker.pass_time(self.RETENTION_MS)

        assert delete_group(broker) == E.GROUP_ID_NOT_FOUND

    def test_restarts_do_not_make_offsets_younger(self, broker):
        broker.commit(1)
        for _ in range(8):
            broker.pass_time(DAY_MS)
            broker.restart()
        broker.pass_time(DAY_MS)

        assert broker.fetch() == NOTHING

    def test_a_stepped_wall_clock_expires_nothing(self, broker):
        broker.commit(1)
        broker.wall_skew_ms = 100 * self.RETENTION_MS
        broker.restart()
        broker.pass_time(DAY_MS)

        assert broker.fetch() == (0, 1)

    def test_empty_group_ages_from_when_it_became_empty(self, broker):
        group = Generation(broker, 1, session=1_800_000)
        broker.commit(1, group.members[0], group.number)
        for _ in range(8 * 48 * 2):
            broker.pass_time(900_000)
            broker.heartbeat(group.members[0], group.number)
        broker.leave(group.members[0])
        broker.pass_time(self.RETENTION_MS - DAY_MS)
        assert broker.fetch() == (0, 1)
        broker.pass_time(2 * DAY_MS)

        assert broker.fetch() == NOTHING

    def test_stable_group_keeps_what_it_subscribes_to(self, broker):
        group = Generation(broker, 1, session=1_800_000, protocols=(("range", subscription("t")),))
        member = group.members[0]
        broker.commit(1, member, group.number, topic="t")
        broker.commit(2, member, group.number, topic="u")
        for _ in range(8 * 48 * 2):
            broker.pass_time(900_000)
            broker.heartbeat(member, group.number)

        assert broker.fetch_all() == {("t", 0): (0, 1)}

    def test_explicit_retention_of_old_clients(self, broker):
        broker.commit(1, version=4, retention_time_ms=DAY_MS)
        broker.commit(2, version=4, partition=1)
        broker.restart()
        broker.pass_time(2 * DAY_MS)

        assert broker.fetch_all() == {("t", 1): (0, 2)}


class TestDeletion:
    def test_offsets_of_a_topic_in_use_stay(self, broker):
        group = Generation(broker, 1, protocols=(("range", subscription("t")),))
        for topic in ("t", "u"):
            broker.commit(1, group.members[0], group.number, topic=topic)

        assert delete(broker, "t") == E.GROUP_SUBSCRIBED_TO_TOPIC
        assert delete(broker, "u") == E.NONE
        assert broker.fetch_all() == {("t", 0): (0, 1)}

    def test_group_of_another_kind_in_use_is_left_alone(self, broker):
        Generation(broker, 1, type="connect")

        assert delete(broker) == E.NON_EMPTY_GROUP

    def test_groups(self, broker):
        group = Generation(broker, 1)
        broker.commit(1, group.members[0], group.number)

        assert delete_group(broker, "nobody") == E.GROUP_ID_NOT_FOUND
        assert delete(broker, group="nobody") == E.GROUP_ID_NOT_FOUND
        assert delete_group(broker) == E.NON_EMPTY_GROUP
        broker.leave(group.members[0])
        assert delete_group(broker) == E.NONE
        broker.restart()
        assert broker.fetch() == NOTHING
        assert delete_group(broker) == E.GROUP_ID_NOT_FOUND
