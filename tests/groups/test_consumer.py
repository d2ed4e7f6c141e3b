"""Groups of the new protocol (KIP-848): epochs, revocation before assignment, static members."""

import random

import pytest

from dualwrite.broker.groups.assignors import assign_range, assign_uniform
from dualwrite.broker.transactions.pattern import Pattern, PatternError
from dualwrite.wire.error_codes import ErrorCode as E
from tests.groups.harness import Broker, Generation, topic_id

T, U = topic_id(1), topic_id(2)
JOIN = {"owned": {}, "rebalance": 30_000}


@pytest.fixture
def broker():
    return Broker()


def held(reply):
    if reply.assignment is None:
        return None
    return {t.topic_id: set(t.partitions) for t in reply.assignment.topic_partitions}


class Member:
    """A client that does what it is told: revokes at once, reports what it owns when it changed."""

    def __init__(self, broker, name, group="g", **subscription):
        self.broker, self.name, self.group = broker, name, group
        self.instance = subscription.get("instance")
        self.owned = {}
        reply = broker.beat(name, 0, group=group, **JOIN, **subscription)
        assert reply.error_code == E.NONE, reply
        self.epoch = reply.member_epoch
        self.take(reply)

    def take(self, reply):
        self.epoch = reply.member_epoch
        if held(reply) is not None:
            self.owned = held(reply)

    def beat(self, **changes):
        reply = self.broker.beat(
            self.name, self.epoch, group=self.group, owned=self.owned, instance=self.instance,
            **changes,
        )  # fmt: skip
        assert reply.error_code == E.NONE, reply
        self.take(reply)
        return reply

    @property
    def places(self):
        return {(topic, p) for topic, partitions in self.owned.items() for p in partitions}


def settle(members, rounds=12):
    """Heartbeats until nothing moves; no partition is ever held twice on the way."""
    for _ in range(rounds):
        for member in members:
            member.beat()
            places = [place for m in members for place in m.places]
            assert len(places) == len(set(places))


def describe(broker, group="g"):
    return broker.groups.describe_consumer_group(group)


def test_first_member_gets_everything(broker):
    reply = broker.beat("m", 0, topics=["t", "u"], **JOIN)

    assert (reply.error_code, reply.member_id, reply.member_epoch) == (E.NONE, "m", 1)
    assert held(reply) == {T: {0, 1, 2, 3}, U: {0, 1}}
    assert reply.heartbeat_interval_ms == 5_000
    assert held(broker.beat("m", 1)) is None
    assert describe(broker).group_state == "Stable"


def test_old_version_gets_its_member_id_from_the_broker(broker):
    reply = broker.beat("", 0, topics=["t"], version=0, **JOIN)

    assert reply.member_id.startswith("fresh-")


@pytest.mark.parametrize("assignor", ["uniform", "range", None])
def test_second_member_waits_until_the_first_has_given_back(broker, assignor):
    first = Member(broker, "a", topics=["t"], assignor=assignor)
    second = Member(broker, "b", topics=["t"], assignor=assignor)
    assert second.owned == {}
    told = broker.beat("a", first.epoch, owned=first.owned)
    assert len(held(told)[T]) == 2
    assert told.member_epoch == first.epoch, "the epoch moves when revocation is acknowledged"
    second.beat()
    assert second.owned == {}
    first.owned = held(told)
    first.beat()
    second.beat()

    assert len(second.owned[T]) == 2
    assert first.epoch == second.epoch == describe(broker).group_epoch
    assert describe(broker).group_state == "Stable"


def test_three_members_share_and_inherit(broker):
    members = [Member(broker, name, topics=["t", "u"]) for name in "abc"]
    settle(members)
    assert sorted(len(m.places) for m in members) == [2, 2, 2]
    broker.beat("a", -1)
    settle(members[1:])

    assert sorted(len(m.places) for m in members[1:]) == [3, 3]


def test_lost_reply_is_forgiven_but_older_epochs_are_fenced(broker):
    Member(broker, "a", topics=["t"])
    broker.beat("a", 1, topics=["t", "u"])
    assert broker.beat("a", 1, owned={T: {0, 1, 2, 3}}).error_code == E.NONE
    assert broker.beat("a", 1).error_code == E.FENCED_MEMBER_EPOCH
    assert broker.beat("a", 9).error_code == E.FENCED_MEMBER_EPOCH
    assert broker.beat("b", 1).error_code == E.UNKNOWN_MEMBER_ID
    assert broker.beat("a", 1, group="x").error_code == E.GROUP_ID_NOT_FOUND
    back = broker.beat("a", 0, topics=["t", "u"], **JOIN)

    assert (back.error_code, held(back)) == (E.NONE, {T: {0, 1, 2, 3}, U: {0, 1}})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member": ""}, E.INVALID_REQUEST),
        ({"group": ""}, E.INVALID_REQUEST),
        ({"instance": ""}, E.INVALID_REQUEST),
        ({"rebalance": -1}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"owned": {T: {0}}}, E.INVALID_REQUEST),
        ({"topics": None}, E.INVALID_REQUEST),
        ({"epoch": -2}, E.INVALID_REQUEST),
        ({"epoch": -3}, E.INVALID_REQUEST),
        ({"assignor": "best"}, E.UNSUPPORTED_ASSIGNOR),
        ({"topics": None, "regex": "a("}, E.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 5}, E.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, E.GROUP_ID_NOT_FOUND),
    ],
)
def test_bad_heartbeats_change_nothing(broker, change, code):
    request = {"member": "m", "epoch": 0, "topics": ["t"], **JOIN, **change}

    assert broker.beat(**request).error_code == code
    assert broker.log == []


def test_group_size_limit():
    broker = Broker(**{"group.consumer.max.size": 1})
    Member(broker, "a", topics=["t"])

    refused = broker.beat("b", 0, topics=["t"], **JOIN)
    assert refused.error_code == E.GROUP_MAX_SIZE_REACHED


def test_silent_member_loses_its_partitions(broker):
    first, second = (Member(broker, name, topics=["t"]) for name in "ab")
    settle([first, second])
    broker.pass_time(44_000)
    second.beat()
    broker.pass_time(1_001)
    second.beat()

    assert second.owned == {T: {0, 1, 2, 3}}
    assert broker.beat("a", first.epoch).error_code == E.UNKNOWN_MEMBER_ID


def test_member_that_never_revokes_is_removed_after_its_rebalance_timeout(broker):
    first = Member(broker, "a", topics=["t"])
    second = Member(broker, "b", topics=["t"])
    broker.beat("a", first.epoch, owned=first.owned)
    for _ in range(3):
        broker.pass_time(10_000)
        if broker.steady_ms < 31_000:
            broker.beat("a", first.epoch, owned=first.owned)
        second.beat()
    second.beat()

    assert second.owned == {T: {0, 1, 2, 3}}


def test_topics_that_come_and_grow_are_assigned(broker):
    member = Member(broker, "a", topics=["t", "later"])
    broker.create_topic("later", 1)
    member.beat()
    assert member.owned == {T: {0, 1, 2, 3}, topic_id(3): {0}}
    broker.topics.replay({"kind": "partitions_created", "name": "later", "partitions": 2})
    member.beat()

    assert member.owned[topic_id(3)] == {0, 1}


def test_unsubscribed_topics_are_given_back(broker):
    member = Member(broker, "a", topics=["t", "u"])
    member.beat(topics=["u"])
    member.beat()

    assert member.owned == {U: {0, 1}}


class TestPatterns:
    def test_subscription_by_pattern_finds_new_topics(self, broker):
        member = Member(broker, "a", regex="t.*")
        assert member.owned == {T: {0, 1, 2, 3}}
        broker.create_topic("tt", 1)
        member.beat()

        assert member.owned == {T: {0, 1, 2, 3}, topic_id(3): {0}}

    def test_topics_without_a_right_are_not_found(self, broker):
        reply = broker.beat("a", 0, regex=".", visible=lambda name: name == "u", **JOIN)

        assert held(reply) == {U: {0, 1}}

    def test_survives_a_restart(self, broker):
        member = Member(broker, "a", regex="t")
        broker.restart()
        other = Member(broker, "b", topics=["u"])
        settle([member, other])

        assert (set(member.owned), set(other.owned)) == ({T}, {U})

    @pytest.mark.parametrize(
        ("pattern", "name", "expected"),
        [
            ("a.c", "abc", True),
            ("a.c", "abcd", False),
            ("^orders-[0-9]+$", "orders-12", True),
            ("^orders-[0-9]+$", "orders-x", False),
            ("^a$|^b$", "b", True),
            ("(?i)ABC", "abc", True),
            ("[^a-c]+", "xyz", True),
            ("[^a-c]+", "xaz", False),
            (r"\w{2,3}\.\d", "ab.1", True),
            ("(a+)+b", "a" * 249, False),
            ("(ab?){3}", "ababa", True),
            ("", "", True),
        ],
    )
    def test_pattern(self, pattern, name, expected):
        assert Pattern(pattern).fullmatch(name) is expected

    @pytest.mark.parametrize(
        "pattern",
        [
            "(",
            ")",
            "a)",
            "*",
            "[",
            "[b-a]",
            "a{2,1}",
            r"\1",
            "(?=a)",
            "(a{999}){999}",
            "\\",
            "(" * 99,
        ],
    )
    def test_bad_pattern(self, pattern):
        with pytest.raises(PatternError):
            Pattern(pattern)


class TestStaticMembers:
    def test_returns_under_a_new_id_with_what_it_had(self, broker):
        first = Member(broker, "a1", topics=["t"], instance="a")
        second = Member(broker, "b1", topics=["t"], instance="b")
        settle([first, second])
        before, epoch = first.owned, describe(broker).group_epoch
        broker.beat("a1", -2, instance="a")
        settle([second])
        back = Member(broker, "a2", topics=["t"], instance="a")

        assert back.owned == before
        assert describe(broker).group_epoch == epoch, "nothing to rebalance"
        assert broker.beat("a1", epoch, instance="a").error_code == E.FENCED_INSTANCE_ID

    def test_is_not_replaced_while_it_lives(self, broker):
        Member(broker, "a1", topics=["t"], instance="a")
        reply = broker.beat("a2", 0, topics=["t"], instance="a", **JOIN)

        assert reply.error_code == E.UNRELEASED_INSTANCE_ID

    def test_that_stays_away_is_removed(self, broker):
        Member(broker, "a1", topics=["t"], instance="a")
        broker.beat("a1", -2, instance="a")
        broker.pass_time(45_001)

        assert describe(broker).group_state == "Empty"

    def test_unknown_instance(self, broker):
        Member(broker, "a", topics=["t"])

        assert broker.beat("a", 1, instance="x").error_code == E.UNKNOWN_MEMBER_ID


class TestOffsets:
    """Who may commit, by epoch (protocol rules of KIP-848 and KIP-447)."""

    @pytest.fixture
    def member(self, broker):
        member = Member(broker, "a", topics=["t"])
        member.beat(topics=["t", "u"])
        assert member.epoch == 2
        return member

    @pytest.mark.parametrize(
        ("name", "epoch", "topic", "plain", "old_txn", "new_txn"),
        [
            ("a", 2, "t", E.NONE, E.NONE, E.NONE),
            ("a", 1, "t", E.NONE, E.NONE, E.NONE),  # it had t in epoch 1 already
            ("a", 1, "u", E.STALE_MEMBER_EPOCH, E.ILLEGAL_GENERATION, E.STALE_MEMBER_EPOCH),
            ("a", 3, "t", E.STALE_MEMBER_EPOCH, E.ILLEGAL_GENERATION, E.STALE_MEMBER_EPOCH),
            ("b", 2, "t", E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
            ("", -1, "t", E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE),
        ],
    )
    def test_commit(self, broker, member, name, epoch, topic, plain, old_txn, new_txn):
        who = {"member": name, "generation": epoch, "topic": topic}

        assert broker.commit(1, **who) == plain
        assert broker.txn_commit(1, version=5, **who) == old_txn
        assert broker.txn_commit(1, version=6, **who) == new_txn

    def test_old_version_of_the_commit(self, broker, member):
        assert broker.commit(1, "a", 2, version=8) == E.UNSUPPORTED_VERSION

    def test_empty_group_takes_commits_from_outside(self, broker, member):
        broker.beat("a", -1)

        assert broker.commit(1) == E.NONE

    def test_zombies_fetch_nothing(self, broker, member):
        broker.commit(7, "a", 2)

        assert broker.fetch(member="a", epoch=2) == (0, 7)
        assert broker.fetch(member="a", epoch=1)[0] == E.STALE_MEMBER_EPOCH
        assert broker.fetch(member="b", epoch=2)[0] == E.UNKNOWN_MEMBER_ID
        assert broker.fetch() == (0, 7)


class TestRestart:
    def test_members_go_on(self, broker):
        members = [Member(broker, name, topics=["t", "u"]) for name in "abc"]
        settle(members)
        before = [(m.epoch, m.owned) for m in members]
        broker.restart()
        settle(members)

        assert [(m.epoch, m.owned) for m in members] == before
        assert describe(broker).group_state == "Stable"

    @pytest.mark.parametrize("seed", range(5))
    def test_at_any_point_of_a_random_history(self, seed):
        rng = random.Random(seed)
        broker = Broker({"t": 5, "u": 3})
        members = []
        for step in range(300):
            choice = rng.random()
            if choice < 0.1 and len(members) < 5:
                topics = rng.choice([["t"], ["u"], ["t", "u"]])
                members.append(Member(broker, f"m{step}", topics=topics))
            elif choice < 0.15 and members:
                leaver = members.pop(rng.randrange(len(members)))
                broker.beat(leaver.name, -1)
            elif choice < 0.25:
                broker.restart()
            elif members:
                rng.choice(members).beat()
            places = [place for m in members for place in m.places]
            assert len(places) == len(set(places))
        settle(members)
        if any("t" in m.subscribed_topic_names for m in describe(broker).members):
            assert {p for m in members for p in m.owned.get(topic_id(1), ())} == set(range(5))


class TestBothProtocols:
    def test_empty_group_changes_its_protocol_and_keeps_its_offsets(self, broker):
        group = Generation(broker, 1)
        broker.commit(5, group.members[0], group.number)
        broker.leave(group.members[0])
        member = Member(broker, "a", topics=["t"])
        assert broker.fetch(member="a", epoch=member.epoch) == (0, 5)
        broker.restart()
        member.beat()
        broker.beat("a", -1)
        Generation(broker, 1)
        broker.restart()

        assert broker.fetch() == (0, 5)
        assert broker.groups.describe_group("g", 5).group_state == "Stable"

    def test_group_in_use_does_not(self, broker):
        Generation(broker, 1, group="classic")
        Member(broker, "a", group="new", topics=["t"])

        refused = broker.beat("m", 0, group="classic", topics=["t"], **JOIN)
        assert refused.error_code == E.GROUP_ID_NOT_FOUND
        joined = broker.reply(broker.join(group="new"))
        assert joined.error_code == E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_assignors_give_every_partition_to_one_subscriber(assign, seed):
    rng = random.Random(seed)
    current = {}
    for _ in range(200):
        partitions = {topic_id(n): rng.randint(1, 9) for n in range(rng.randint(1, 4))}
        subscriptions = {
            f"m{n}": {t for t in partitions if rng.random() < 0.7} for n in range(rng.randint(1, 6))
        }
        current = assign(subscriptions, partitions, current)
        given = [(t, p) for m in current.values() for t, ps in m.items() for p in ps]
        readable = {t for topics in subscriptions.values() for t in topics}
        wanted = {(t, p) for t in readable for p in range(partitions[t])}
        assert len(given) == len(set(given))
        assert set(given) == wanted
        assert all(t in subscriptions[m] for m, topics in current.items() for t in topics)


def test_uniform_is_even_and_moves_little():
    partitions = {topic_id(1): 12}
    before = assign_uniform({"a": {topic_id(1)}, "b": {topic_id(1)}}, partitions, {})
    everyone = {name: {topic_id(1)} for name in "abc"}
    after = assign_uniform(everyone, partitions, before)

    assert [len(after[name][topic_id(1)]) for name in "abc"] == [4, 4, 4]
    for name in "ab":
        assert after[name][topic_id(1)] < before[name][topic_id(1)]


def test_range_gives_matching_partitions_of_equal_topics():
    partitions = {topic_id(1): 4, topic_id(2): 4}
    both = {"a": set(partitions), "b": set(partitions)}
    for topics in assign_range(both, partitions, {}).values():
        assert topics[topic_id(1)] == topics[topic_id(2)]
