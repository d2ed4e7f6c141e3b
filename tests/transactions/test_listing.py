"""ListTransactions' filters (protocol 2.15) and its patterns (KIP-1152)."""

import re
from random import Random

import pytest

from dualwrite.broker.transactions.pattern import Pattern, PatternError
from tests.transactions.harness import Bench, code


@pytest.fixture
def bench():
    bench = Bench()
    bench.init(id="empty")
    bench.begin(id="orders-0")
    bench.advance(1_000)
    bench.begin(id="orders-1", two_phase=True)
    bench.end(bench.begin(id="done"), id="done")
    return bench


def ids(bench, **filters):
    listing = bench.coordinator.list_transactions(now=bench.now, **filters)
    assert listing.error == 0
    return {t.transactional_id for t in listing.transactions}


def test_no_filter_lists_all(bench):
    assert ids(bench) == {"empty", "orders-0", "orders-1", "done"}


def test_states(bench):
    assert ids(bench, states=["Ongoing"]) == {"orders-0", "orders-1"}
    assert ids(bench, states=["Empty", "CompleteCommit"]) == {"empty", "done"}


def test_unknown_states_are_returned_and_match_nothing(bench):
    listing = bench.coordinator.list_transactions(states=["Ongoign", "Empty"], now=bench.now)

    assert listing.unknown_states == ("Ongoign",)
    assert {t.transactional_id for t in listing.transactions} == {"empty"}
    assert ids(bench, states=["Ongoign"]) == set()


def test_producer_ids(bench):
    wanted = bench.at("orders-1").producer_id

    assert ids(bench, producer_ids=[wanted, 7]) == {"orders-1"}


def test_duration(bench):
    assert ids(bench, duration_ms=500) == {"empty", "orders-0"}
    assert ids(bench, duration_ms=500, states=["Ongoing"]) == {"orders-0"}
    assert ids(bench, duration_ms=1_000, states=["Ongoing"]) == set()


def test_pattern_matches_in_full(bench):
    assert ids(bench, pattern="orders-[0-9]+") == {"orders-0", "orders-1"}
    assert ids(bench, pattern="orders") == set()
    assert ids(bench, pattern="^orders-1$") == {"orders-1"}
    assert ids(bench, pattern="") == {"empty", "orders-0", "orders-1", "done"}


def test_filters_are_joined_by_and(bench):
    assert ids(bench, states=["Ongoing"], pattern=".*-1") == {"orders-1"}


def test_expired_ids_are_hidden(bench):
    bench.advance(604_800_000)
    bench.expire()

    assert ids(bench) == {"orders-0", "orders-1"}


def test_bad_pattern(bench):
    listing = bench.coordinator.list_transactions(pattern="(", now=bench.now)

    assert int(listing.error) == 128
    assert listing.transactions == ()


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "[a", "a**", "*a", "+", "a{2}{3}", "a{3,2}", "a{1001}", "[b-a]", "\\", "\\b",
     "(?=a)", "(?!a)", "(?<=a)b", "(a)\\1", "(?P<1>a)", "\\p{L}", "[[:nope:]]", "\\x{110000}",
     "\\xg0", "((a{1000}){1000}){1000}", "(" * 200 + ")" * 200, "a?(?i)b"],
)  # fmt: skip
def test_refused_patterns(text):
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("\\Qa.b\\Ec+", ["a.bcc"], ["axbc", "a.b"]),
        ("x\\Q*", ["x*"], ["x"]),
        ("(?i)orders-[a-c]", ["ORDERS-B", "orders-a"], ["orders-d"]),
        ("a{2,3}", ["aa", "aaa"], ["a", "aaaa"]),
        ("a{,3}", ["a{,3}"], ["aa"]),
        ("[[:alpha:]_-]+", ["a_-B"], ["1"]),
        ("[^[:digit:]]", ["a"], ["1"]),
        ("[]a]+", ["]a"], ["b"]),
        ("\\x41\\x{42}", ["AB"], ["ab"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        (".", ["é", "😀"], ["\n", ""]),
        ("\\.\\-\\_", [".-_"], [".-"]),
        ("|a", ["", "a"], ["b"]),
    ],
)
def test_patterns(text, matching, other):
    pattern = Pattern(text)

    assert [t for t in matching if not pattern.fullmatch(t)] == []
    assert [t for t in other if pattern.fullmatch(t)] == []


def test_patterns_agree_with_pythons_re():
    atoms = ["a", "b", "-", "0", "[a-c]", "[^a]", ".", "(a|b)", "(?:ab)?", "\\d", "\\w", "a{2}",
             "b{1,3}", "(a|)", "x{0,2}", "(b+|c)*", "^", "$", "\\-", "\\S"]  # fmt: skip
    random = Random(7)
    compared = 0
    for _ in range(3_000):
        text = "".join(
            random.choice(atoms) + random.choice(["", "", "*", "+", "?", "*?"])
            for _ in range(random.randint(1, 5))
        )
        try:
            pattern, oracle = Pattern(text), re.compile(text, re.ASCII)
        except (PatternError, re.error):
            continue
        for _ in range(5):
            sample = "".join(random.choice("abc-0x. ") for _ in range(random.randint(0, 6)))
            assert pattern.fullmatch(sample) == bool(oracle.fullmatch(sample)), (text, sample)
            compared += 1
    assert compared > 5_000


def test_no_pattern_takes_more_than_linear_time():
    """Python's own `re` would not return within the age of the universe."""
    assert not Pattern("(a*)*b").fullmatch("a" * 20_000)
    assert not Pattern("(a|a)*(a|aa)+c").fullmatch("a" * 20_000)


def test_cache_is_bounded():
    pattern = Pattern(".*[ab]....................")
    random = Random(3)
    for _ in range(40):
        pattern.fullmatch("".join(random.choice("abcdefgh") for _ in range(300)))

    assert len(pattern._sets) < 3_000


def test_describe_of_an_unknown_id(bench):
    assert bench.at("nobody") is None


def test_describe_shows_the_ongoing_pair_of_a_kept_transaction(bench):
    before = bench.at("orders-1").pair
    bench.init(id="orders-1", keep=True)

    assert bench.at("orders-1").pair == before
    assert code(bench.init(id="orders-1", keep=True)) == 0
