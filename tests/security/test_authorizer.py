"""The authorizer against a model that is too simple to be wrong, and the rules by name."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.clock import Now
from dualwrite.broker.security.authorizer import (
    CACHED_VERDICTS_MAX,
    Authorizer,
    added,
    parse_super_users,
    removed,
)
from dualwrite.broker.security.bindings import AclBinding, AclFilter, PatternType, Permission
from dualwrite.broker.security.errors import InvalidBinding, SecurityConfigError
from dualwrite.wire.api_keys import ApiKey

NAMES = ["a", "ab", "abc", "abd", "b", "*"]
PRINCIPALS = ["User:x", "User:y"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP]
REAL = [op for op in Operation if op not in (Operation.UNKNOWN, Operation.ANY, Operation.ALL)]


def binding(
    name="orders",
    operation=Operation.READ,
    permission=Permission.ALLOW,
    principal="User:x",
    host="*",
    pattern_type=PatternType.LITERAL,
    resource_type=ResourceType.TOPIC,
):
    return AclBinding.of(
        resource_type=resource_type,
        pattern_type=pattern_type,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def authorizer(*bindings, **options):
    result = Authorizer(enabled=True, **options)
    result.replay_meta(added(bindings))
    return result


BINDINGS = st.builds(
    binding,
    name=st.sampled_from(NAMES),
    operation=st.sampled_from([Operation.ALL, *REAL]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
    principal=st.sampled_from([*PRINCIPALS, "User:*"]),
    host=st.sampled_from([*HOSTS, "*"]),
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    resource_type=st.sampled_from(TYPES),
)


def model_matches(rule, principal, host, resource_type, name):
    if rule.pattern_type is PatternType.LITERAL:
        covers = rule.name == "*" or rule.name == name
    else:
        covers = name[: len(rule.name)] == rule.name
    return (
        covers
        and rule.resource_type == resource_type
        and rule.principal in ("User:*", principal)
        and rule.host in ("*", host)
    )


def model_allows(rules, principal, host, operation, resource_type, name):
    """Written out from Kafka's documentation, without an index."""
    mine = [r for r in rules if model_matches(r, principal, host, resource_type, name)]
    grants = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        grants |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        grants |= {Operation.ALTER_CONFIGS}
    denied = any(
        r.permission is Permission.DENY and r.operation in (operation, Operation.ALL) for r in mine
    )
    allowed = any(r.permission is Permission.ALLOW and r.operation in grants for r in mine)
    return allowed and not denied


CHANGES = st.lists(
    st.tuples(st.booleans(), st.lists(BINDINGS, min_size=1, max_size=3)), max_size=12
)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(changes=CHANGES, data=st.data())
def test_any_history_of_rules_decides_like_the_model(changes, data):
    """CVE-2024-27309: taking one rule out leaves every other rule in force."""
    real = Authorizer(enabled=True)
    model = set()
    for add, bindings in changes:
        real.replay_meta(json.loads(json.dumps(added(bindings) if add else removed(bindings))))
        model = model | set(bindings) if add else model - set(bindings)
        for _ in range(4):
            question = (
                data.draw(st.sampled_from(PRINCIPALS)),
                data.draw(st.sampled_from(HOSTS)),
                data.draw(st.sampled_from(REAL)),
                data.draw(st.sampled_from(TYPES)),
                data.draw(st.sampled_from([*NAMES[:-1], "abcd", "c"])),
            )

            assert real.allows(*question) == model_allows(model, *question)

    copy = Authorizer(enabled=True)
    for record in real.meta_records():
        copy.replay_meta(record)
    everything = filter_of(pattern_type=PatternType.ANY)
    assert copy.select(everything) == real.select(everything) == sorted(model)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(rules=st.lists(BINDINGS, max_size=6))
def test_any_topic_is_never_refused_when_a_named_topic_is_allowed(rules):
    """The converse does not hold: Kafka looks at one deny rule at a time."""
    real = authorizer(*rules)
    for principal in PRINCIPALS:
        for host in HOSTS:
            names = [*NAMES[:-1], "abcd", "c"]
            allowed = [
                n
                for n in names
                if real.allows(principal, host, Operation.WRITE, ResourceType.TOPIC, n)
            ]
            if allowed:
                assert real.allows_any_topic(principal, host, Operation.WRITE)


def test_removing_one_of_two_rules_on_a_resource_keeps_the_other():
    read, write = binding(), binding(operation=Operation.WRITE)
    real = authorizer(read, write)

    real.replay_meta(removed([read]))

    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert real.allows("User:x", "h", Operation.WRITE, ResourceType.TOPIC, "orders")


def test_removing_one_prefix_keeps_another_of_the_same_length():
    first = binding(name="ord", pattern_type=PatternType.PREFIXED)
    second = binding(name="pay", pattern_type=PatternType.PREFIXED)
    real = authorizer(first, second)

    real.replay_meta(removed([first]))

    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "payments")


def test_deny_beats_allow_across_patterns():
    real = authorizer(
        binding(),
        binding(name="ord", pattern_type=PatternType.PREFIXED, permission=Permission.DENY),
    )

    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")


@pytest.mark.parametrize(
    "operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER]
)
def test_what_implies_describe(operation):
    real = authorizer(binding(operation=operation))

    assert real.allows("User:x", "h", Operation.DESCRIBE, ResourceType.TOPIC, "orders")


def test_two_phase_commit_implies_nothing_and_nothing_but_all_implies_it():
    """KIP-939: the right to hold transactions open is given by name."""
    real = authorizer(
        binding(operation=Operation.TWO_PHASE_COMMIT, resource_type=ResourceType.TRANSACTIONAL_ID)
    )
    for operation in REAL:
        allowed = real.allows("User:x", "h", operation, ResourceType.TRANSACTIONAL_ID, "orders")
        assert allowed == (operation is Operation.TWO_PHASE_COMMIT)

    for operation in (Operation.WRITE, Operation.ALTER, Operation.ALL):
        rules = authorizer(
            binding(operation=operation, resource_type=ResourceType.TRANSACTIONAL_ID)
        )
        question = (Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, "orders")
        assert rules.allows("User:x", "h", *question) == (operation is Operation.ALL)


def test_denied_describe_leaves_read():
    real = authorizer(binding(), binding(operation=Operation.DESCRIBE, permission=Permission.DENY))

    assert real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert not real.allows("User:x", "h", Operation.DESCRIBE, ResourceType.TOPIC, "orders")


def test_super_user_is_not_denied():
    rule = binding(
        name="*", principal="User:*", operation=Operation.ALL, permission=Permission.DENY
    )
    real = authorizer(rule, super_users=parse_super_users("User:root; User:CN=a,O=b"))

    assert real.allows("User:root", "h", Operation.READ, ResourceType.TOPIC, "t")
    assert real.allows("User:CN=a,O=b", "h", Operation.READ, ResourceType.TOPIC, "t")
    assert not real.allows("User:CN=a", "h", Operation.READ, ResourceType.TOPIC, "t")


@pytest.mark.parametrize("text", ["root", "User:", ":root", "User:*"])
def test_super_users_that_name_nobody_are_refused(text):
    with pytest.raises(SecurityConfigError):
        parse_super_users(text)


def test_nothing_is_allowed_without_rules_and_everything_when_switched_off():
    question = ("User:x", "h", Operation.READ, ResourceType.TOPIC, "t")

    assert not Authorizer(enabled=True).allows(*question)
    assert Authorizer(enabled=True, allow_everyone_if_no_acl_found=True).allows(*question)
    assert Authorizer(enabled=False).allows(*question)


def test_a_rule_ends_the_openness_of_its_resource():
    real = authorizer(binding(principal="User:y"), allow_everyone_if_no_acl_found=True)

    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "other")


def test_the_literal_star_topic_name_is_not_a_way_around_a_deny():
    real = authorizer(binding(name="*"), binding(name="*", permission=Permission.DENY))

    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "*")


@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        ([], True),
        ([("*", PatternType.LITERAL)], False),
        ([("ord", PatternType.PREFIXED)], False),
        ([("orders", PatternType.LITERAL)], False),
        ([("orders2", PatternType.LITERAL)], True),
        ([("orders-", PatternType.PREFIXED)], True),
    ],
)
def test_any_topic_with_one_literal_allow(denied, expected):
    real = authorizer(
        binding(operation=Operation.WRITE),
        *(
            binding(name=n, pattern_type=p, operation=Operation.WRITE, permission=Permission.DENY)
            for n, p in denied
        ),
    )

    assert real.allows_any_topic("User:x", "h", Operation.WRITE) is expected


def test_a_literal_deny_does_not_cover_a_prefix():
    real = authorizer(
        binding(operation=Operation.WRITE, pattern_type=PatternType.PREFIXED),
        binding(operation=Operation.WRITE, permission=Permission.DENY),
    )

    assert real.allows_any_topic("User:x", "h", Operation.WRITE)


def test_verdicts_follow_changes_and_the_cache_is_bounded():
    real = authorizer(binding())
    assert real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")

    real.replay_meta(added([binding(permission=Permission.DENY)]))
    assert not real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, "orders")
    for number in range(CACHED_VERDICTS_MAX + 10):
        real.allows("User:x", "h", Operation.READ, ResourceType.TOPIC, f"t{number}")

    assert len(real._verdicts) <= CACHED_VERDICTS_MAX


def test_authorized_operations_are_bits_by_kafkas_numbers():
    real = authorizer(binding(), binding(operation=Operation.WRITE))
    sender = SimpleNamespace(principal="User:x", host="h")
    call = Call(ApiKey.METADATA, 8, 1, "client", None, sender, real, Now(0, 0))
    among = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE)

    bits = call.operations(ResourceType.TOPIC, "orders", among)

    assert bits == 1 << 3 | 1 << 4 | 1 << 8


def filter_of(
    pattern_type=PatternType.LITERAL,
    name=None,
    resource_type=ResourceType.ANY,
    principal=None,
    host=None,
    operation=Operation.ANY,
    permission=Permission.ANY,
):
    return AclFilter.of(
        resource_type=resource_type,
        pattern_type=pattern_type,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


@pytest.mark.parametrize(
    ("pattern_type", "name", "expected"),
    [
        (PatternType.ANY, None, {"orders", "*", "ord+"}),
        (PatternType.ANY, "orders", {"orders"}),
        (PatternType.ANY, "ord", {"ord+"}),
        (PatternType.LITERAL, None, {"orders", "*"}),
        (PatternType.LITERAL, "orders", {"orders"}),
        (PatternType.LITERAL, "*", {"*"}),
        (PatternType.PREFIXED, None, {"ord+"}),
        (PatternType.PREFIXED, "orders", set()),
        (PatternType.MATCH, None, {"orders", "*", "ord+"}),
        (PatternType.MATCH, "orders", {"orders", "*", "ord+"}),
        (PatternType.MATCH, "ordeal", {"*", "ord+"}),
        (PatternType.MATCH, "or", {"*"}),
    ],
)
def test_filters_select_patterns_as_in_kip_290(pattern_type, name, expected):
    real = authorizer(
        binding(), binding(name="*"), binding(name="ord", pattern_type=PatternType.PREFIXED)
    )

    chosen = real.select(filter_of(pattern_type, name))

    assert {b.name + "+" * (b.pattern_type is PatternType.PREFIXED) for b in chosen} == expected


@pytest.mark.parametrize(
    ("part", "matching", "other"),
    [
        ("resource_type", ResourceType.TOPIC, ResourceType.GROUP),
        ("principal", "User:x", "User:*"),
        ("host", "*", "10.0.0.1"),
        ("operation", Operation.READ, Operation.ALL),
        ("permission", Permission.ALLOW, Permission.DENY),
    ],
)
def test_filters_compare_every_other_part_exactly(part, matching, other):
    real = authorizer(binding())

    assert real.select(filter_of(**{part: matching})) == [binding()]
    assert real.select(filter_of(**{part: other})) == []


@pytest.mark.parametrize(
    "part",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"pattern_type": 77},
        {"operation": 0},
        {"operation": 1},
        {"operation": 16},
        {"permission": 1},
        {"permission": 0},
        {"name": ""},
        {"name": "a\0"},
        {"host": ""},
        {"principal": "x"},
        {"principal": "User:"},
        {"principal": ""},
        {"resource_type": ResourceType.CLUSTER, "name": "my-cluster"},
        {
            "resource_type": ResourceType.CLUSTER,
            "name": "kafka-cluster",
            "pattern_type": PatternType.PREFIXED,
        },
    ],
    ids=str,
)
def test_bindings_without_meaning_are_refused(part):
    with pytest.raises(InvalidBinding):
        binding(**part)


@pytest.mark.parametrize(
    "part",
    [{"resource_type": 0}, {"pattern_type": 0}, {"operation": 0}, {"permission": 9}],
    ids=str,
)
def test_filters_with_unknown_numbers_are_refused(part):
    with pytest.raises(InvalidBinding):
        filter_of(**part)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "acl_add", "bindings": "x"},
        {"kind": "acl_add", "bindings": [{"name": "x"}]},
        {"kind": "acl_add", "bindings": [binding().encode() | {"operation": "FLY"}]},
        {"kind": "other", "bindings": []},
    ],
    ids=str,
)
def test_records_that_nobody_wrote_are_refused(record):
    with pytest.raises(InvalidBinding):
        Authorizer(enabled=True).replay_meta(record)
