"""Classic groups: joining, generations, static members, timeouts, restarts."""

import pytest

from dualwrite.wire.error_codes import ErrorCode as E
from dualwrite.wire.messages.leave_group import MemberIdentity
from dualwrite.wire.messages.list_groups import ListGroupsRequest
from tests.groups.harness import Broker, Generation


@pytest.fixture
def broker():
    return Broker()


def state(broker, group="g"):
    return broker.groups.describe_group(group, 5).group_state


@pytest.mark.parametrize(("version", "code"), [(3, E.NONE), (4, E.MEMBER_ID_REQUIRED)])
def test_first_join_asks_for_a_member_id_from_version_4(broker, version, code):
    reply = broker.reply(broker.join(version=version))

    assert reply.error_code == code
    assert reply.member_id.startswith("client-")


def test_single_member_leads_and_gets_its_own_assignment(broker):
    token, member = broker.newcomer(protocols=(("range", b"meta"),))
    joined = broker.reply(token)

    assert (joined.leader, joined.generation_id, joined.protocol_name) == (member, 1, "range")
    assert [(m.member_id, m.metadata) for m in joined.members] == [(member, b"meta")]
    assert state(broker) == "CompletingRebalance"
    synced = broker.reply(broker.sync(member, 1, {member: b"mine"}))
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    assert state(broker) == "Stable"
    assert broker.heartbeat(member, 1) == E.NONE


def test_followers_wait_for_the_leader_and_only_the_leader_sees_subscriptions(broker):
    first, leader = broker.newcomer()
    broker.reply(first)
    broker.reply(broker.sync(leader, 1, {leader: b"all"}))
    second, follower = broker.newcomer()
    assert broker.is_parked(second)
    assert broker.heartbeat(leader, 1) == E.REBALANCE_IN_PROGRESS
    again = broker.join(leader)
    joined = broker.reply(again), broker.reply(second)

    assert [len(reply.members) for reply in joined] == [2, 0]
    assert {reply.generation_id for reply in joined} == {2}
    waiting = broker.sync(follower, 2)
    assert broker.is_parked(waiting)
    broker.sync(leader, 2, {leader: b"a", follower: b"b"})
    assert broker.reply(waiting).assignment == b"b"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group": ""}, E.INVALID_GROUP_ID),
        ({"member": "nobody"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_bad_joins_are_refused_and_leave_nothing_behind(broker, change, code):
    assert broker.reply(broker.join(**change)).error_code == code
    assert broker.groups.list_groups(ListGroupsRequest()) == []
    assert broker.log == []


def test_members_must_share_a_protocol_and_the_most_preferred_wins(broker):
    Generation(broker, 1, protocols=(("a", b""), ("b", b"")))
    other = broker.reply(broker.join(protocols=(("c", b""),)))
    wrong_type = broker.reply(broker.join(type="connect", protocols=(("a", b""),)))
    _, member = broker.newcomer(protocols=(("b", b""), ("x", b"")))

    assert other.error_code == wrong_type.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    first = broker.groups.describe_group("g", 5).members[0].member_id
    broker.join(first, protocols=(("a", b""), ("b", b"")))
    assert broker.groups.describe_group("g", 5).group_state == "CompletingRebalance"
    assert (
        broker.reply(broker.join(member, protocols=(("b", b""), ("x", b"")))).protocol_name == "b"
    )


def test_group_max_size():
    broker = Broker(**{"group.max.size": 2})
    Generation(broker, 2)

    assert broker.reply(broker.join()).error_code == E.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("member", "generation", "instance", "code"),
    [
        ("self", 0, None, E.NONE),
        ("self", 1, None, E.ILLEGAL_GENERATION),
        ("self", -1, None, E.ILLEGAL_GENERATION),
        ("other", 0, None, E.UNKNOWN_MEMBER_ID),
        ("self", 0, "i", E.UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeat_and_sync_check_member_and_generation(broker, member, generation, instance, code):
    group = Generation(broker, 1)
    name = group.members[0] if member == "self" else member
    number = group.number + generation

    assert broker.heartbeat(name, number, instance=instance) == code
    synced = broker.reply(broker.sync(name, number, group_instance_id=instance))
    assert synced.error_code == code


def test_sync_checks_the_protocol_from_version_5(broker):
    group = Generation(broker, 1)
    member = group.members[0]

    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        reply = broker.reply(broker.sync(member, group.number, **wrong))
        assert reply.error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_silent_member_is_dropped_after_its_session_timeout(broker):
    group = Generation(broker, 2)
    silent, alive = group.members
    broker.pass_time(9_000)
    assert broker.heartbeat(alive, group.number) == E.NONE
    broker.pass_time(1_001)

    assert broker.heartbeat(alive, group.number) == E.REBALANCE_IN_PROGRESS
    assert broker.heartbeat(silent, group.number) == E.UNKNOWN_MEMBER_ID
    joined = broker.reply(broker.join(alive))
    assert (joined.leader, joined.generation_id) == (alive, group.number + 1)


def test_commits_count_as_heartbeats(broker):
    group = Generation(broker, 1)
    for offset in range(4):
        broker.pass_time(9_000)
        assert broker.commit(offset, group.members[0], group.number) == E.NONE

    assert state(broker) == "Stable"


def test_member_that_does_not_rejoin_is_left_behind_after_the_rebalance_timeout(broker):
    group = Generation(broker, 2, rebalance=20_000, session=60_000)
    slow, quick = group.members
    joining = broker.join(quick, protocols=(("range", b"new"),), rebalance=20_000, session=60_000)
    assert broker.is_parked(joining)
    broker.pass_time(19_999)
    assert broker.is_parked(joining)
    broker.pass_time(1)

    assert broker.reply(joining).leader == quick
    assert broker.heartbeat(slow, group.number) == E.UNKNOWN_MEMBER_ID


def test_member_that_joins_but_never_syncs_is_dropped(broker):
    group = Generation(broker, 2, rebalance=20_000, session=60_000)
    kwargs = {"rebalance": 20_000, "session": 60_000, "protocols": (("range", b"new"),)}
    tokens = {member: broker.join(member, **kwargs) for member in group.members}
    leader = broker.reply(tokens[group.members[0]]).leader
    lazy = next(m for m in group.members if m != leader)
    broker.sync(leader, group.number + 1, {leader: b"x"})
    broker.pass_time(20_000)

    assert broker.heartbeat(lazy, group.number + 1) == E.UNKNOWN_MEMBER_ID
    assert broker.heartbeat(leader, group.number + 1) == E.REBALANCE_IN_PROGRESS


def test_first_rebalance_waits_for_more_members():
    broker = Broker(**{"group.initial.rebalance.delay.ms": 3_000})
    first, _ = broker.newcomer()
    broker.pass_time(2_000)
    second, _ = broker.newcomer()
    assert broker.is_parked(first)
    broker.pass_time(3_999)
    assert broker.is_parked(second)
    broker.pass_time(1)

    assert {broker.reply(t).generation_id for t in (first, second)} == {1}


def test_first_rebalance_waits_no_longer_than_the_rebalance_timeout():
    broker = Broker(**{"group.initial.rebalance.delay.ms": 3_000})
    first, _ = broker.newcomer(rebalance=7_000)
    for _ in range(6):
        assert broker.is_parked(first)
        broker.newcomer(rebalance=7_000)
        broker.pass_time(1_000)
    broker.pass_time(1_000)

    assert broker.reply(first).generation_id == 1


@pytest.mark.parametrize("version", [1, 5])
def test_leaving_hands_over_and_the_last_one_leaves_an_empty_group(broker, version):
    group = Generation(broker, 2)
    first, second = group.members
    reply = broker.leave(first, version=version)
    assert reply.error_code == E.NONE
    assert [m.error_code for m in reply.members] == ([] if version == 1 else [E.NONE])
    joined = broker.reply(broker.join(second))
    assert joined.generation_id == group.number + 1
    broker.leave(second, version=version)

    assert state(broker) == "Empty"
    nobody = broker.leave(second, version=version)
    if version == 1:
        assert nobody.error_code == E.UNKNOWN_MEMBER_ID
    else:
        assert nobody.members[0].error_code == E.UNKNOWN_MEMBER_ID


def test_leaving_in_a_batch_gives_each_its_own_answer(broker):
    token = broker.join(instance="a", version=5)
    member = broker.reply(token).member_id
    reply = broker.leave(
        MemberIdentity(member, "a"),
        MemberIdentity("zombie", "a"),
        MemberIdentity("", "nobody"),
    )

    assert [m.error_code for m in reply.members] == [
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
    ]


def test_operator_removes_a_static_member_by_its_instance_id(broker):
    broker.reply(broker.join(instance="a", version=5))
    reply = broker.leave(MemberIdentity("", "a"))

    assert reply.members[0].error_code == E.NONE
    assert state(broker) == "Empty"


class TestStaticMembers:
    """KIP-345 and KIP-814."""

    @pytest.fixture
    def group(self, broker):
        broker.reply(broker.join(instance="a"))
        second = broker.join(instance="b")
        first = broker.groups.describe_group("g", 5).members[0].member_id
        leader = broker.reply(broker.join(first, instance="a"))
        follower = broker.reply(second)
        members = {"a": leader.member_id, "b": follower.member_id}
        waiting = broker.sync(members["b"], leader.generation_id, group_instance_id="b")
        assignments = {members["a"]: b"A", members["b"]: b"B"}
        broker.sync(members["a"], leader.generation_id, assignments, group_instance_id="a")
        assert broker.reply(waiting).assignment == b"B"
        return members, leader.generation_id

    def test_restart_keeps_the_assignment_without_a_rebalance(self, broker, group):
        members, generation = group
        back = broker.reply(broker.join(instance="b"))

        assert (back.error_code, back.generation_id) == (E.NONE, generation)
        assert back.member_id != members["b"]
        assert broker.reply(broker.sync(back.member_id, generation)).assignment == b"B"
        assert broker.heartbeat(members["a"], generation, instance="a") == E.NONE

    def test_former_self_is_fenced(self, broker, group):
        members, generation = group
        broker.reply(broker.join(instance="b"))

        assert broker.heartbeat(members["b"], generation, instance="b") == E.FENCED_INSTANCE_ID
        assert broker.commit(1, members["b"], generation, instance="b") == E.FENCED_INSTANCE_ID
        synced = broker.reply(broker.sync(members["b"], generation, group_instance_id="b"))
        assert synced.error_code == E.FENCED_INSTANCE_ID
        assert broker.reply(broker.join(members["b"], instance="b")).error_code == (
            E.FENCED_INSTANCE_ID
        )

    def test_parked_join_of_the_former_self_is_fenced(self, broker):
        broker.reply(broker.join(instance="a"))
        parked = broker.join(instance="b")
        assert broker.is_parked(parked)
        broker.join(instance="b")

        assert broker.reply(parked).error_code == E.FENCED_INSTANCE_ID

    @pytest.mark.parametrize(("version", "skips"), [(8, False), (9, True)])
    def test_returning_leader_is_told_to_keep_the_assignment(self, broker, group, version, skips):
        members, generation = group
        back = broker.reply(broker.join(instance="a", version=version))

        assert back.generation_id == generation
        assert back.skip_assignment is skips
        assert back.leader == (back.member_id if skips else members["a"])
        assert len(back.members) == (2 if skips else 0)

    def test_survives_a_rebalance_that_it_misses(self, broker, group):
        members, generation = group
        for _ in range(6):
            broker.pass_time(9_000)
            broker.heartbeat(members["b"], generation, instance="b")
        broker.join(members["a"], instance="a", protocols=(("range", b"new"),))
        broker.restart()
        assert {m.group_instance_id for m in broker.groups.describe_group("g", 5).members} == {
            "a",
            "b",
        }

    def test_is_dropped_after_its_session_timeout(self, broker, group):
        members, generation = group
        broker.pass_time(10_001)

        assert broker.heartbeat(members["a"], generation, instance="a") == E.UNKNOWN_MEMBER_ID
        assert state(broker) == "Empty"


def test_a_repeated_join_answers_the_first_one(broker):
    group = Generation(broker, 2)
    first, _ = group.members
    older = broker.join(first, protocols=(("range", b"new"),))
    newer = broker.join(first, protocols=(("range", b"new"),))

    assert broker.reply(older).error_code == E.REBALANCE_IN_PROGRESS
    assert broker.is_parked(newer)


class TestRestart:
    def test_members_go_on_where_they_were(self, broker):
        group = Generation(broker, 3)
        broker.restart()

        assert state(broker) == "Stable"
        for member in group.members:
            assert broker.heartbeat(member, group.number) == E.NONE
            assert broker.reply(broker.sync(member, group.number)).assignment == member.encode()
            assert broker.commit(5, member, group.number) == E.NONE

    def test_a_generation_that_waits_for_its_assignment_goes_on_too(self, broker):
        token, member = broker.newcomer()
        generation = broker.reply(token).generation_id
        broker.restart()

        assert state(broker) == "CompletingRebalance"
        synced = broker.reply(broker.sync(member, generation, {member: b"mine"}))
        assert (synced.error_code, synced.assignment) == (E.NONE, b"mine")

    def test_no_generation_number_is_used_twice(self, broker):
        numbers = []
        for _ in range(5):
            token, member = broker.newcomer()
            numbers.append(broker.reply(token).generation_id)
            broker.leave(member)
            broker.restart()

        assert numbers == sorted(set(numbers))

    def test_members_that_never_come_back_are_dropped(self, broker):
        group = Generation(broker, 2)
        broker.restart()
        broker.pass_time(9_999)
        assert broker.heartbeat(group.members[0], group.number) == E.NONE
        broker.pass_time(1)
        assert broker.heartbeat(group.members[1], group.number) == E.UNKNOWN_MEMBER_ID

    def test_a_stepped_wall_clock_drops_nobody(self, broker):
        group = Generation(broker, 2)
        broker.wall_skew_ms = 10**9
        broker.pass_time(9_000)

        assert broker.heartbeat(group.members[0], group.number) == E.NONE


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["classic", "idle", "new"]),
        (["stable"], [], ["classic", "new"]),
        (["Empty"], [], ["idle"]),
        ([], ["consumer"], ["new"]),
        (["Stable"], ["Classic"], ["classic"]),
        (["nonsense"], [], []),
    ],
)
def test_list_groups_filters(broker, states, types, found):
    Generation(broker, 1, group="classic")
    broker.commit(1, group="idle")
    broker.beat("m", 0, group="new", topics=["t"], owned={}, rebalance=1_000)

    listed = broker.groups.list_groups(ListGroupsRequest(states, types))
    assert [group.group_id for group in listed] == found


@pytest.mark.parametrize(("version", "code"), [(5, E.NONE), (6, E.GROUP_ID_NOT_FOUND)])
def test_describing_an_unknown_group(broker, version, code):
    described = broker.groups.describe_group("nobody", version)

    assert (described.error_code, described.group_state) == (code, "Dead")
