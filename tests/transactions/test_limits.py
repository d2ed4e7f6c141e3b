"""How many ids, and how many open two-phase transactions, one principal may have."""

from dualwrite.wire.error_codes import ErrorCode
from tests.transactions.harness import ABORT, P0, Bench, code, ok

ANN, BOB = "User:ann", "User:bob"


def test_ids_are_counted_by_who_made_them():
    bench = Bench(ids_per_owner_max=2)
    for name in ("a", "b"):
        ok(bench.init(id=name, owner=ANN))

    assert code(bench.init(id="c", owner=ANN)) == ErrorCode.POLICY_VIOLATION
    ok(bench.init(id="c", owner=BOB))
    ok(bench.init(id="a", owner=ANN))
    assert bench.at("c").owner == BOB
    bench.restart()
    assert code(bench.init(id="d", owner=ANN)) == ErrorCode.POLICY_VIOLATION


def test_another_principal_does_not_become_the_owner():
    bench = Bench(ids_per_owner_max=1)
    ok(bench.init(id="a", owner=ANN))
    ok(bench.init(id="a", owner=BOB))

    assert bench.at("a").owner == ANN
    ok(bench.init(id="b", owner=BOB))


def test_expired_ids_count_no_more():
    bench = Bench(ids_per_owner_max=1, id_expiration_ms=1_000)
    ok(bench.init(id="a", owner=ANN))
    bench.advance(2_000)
    bench.expire()

    ok(bench.init(id="b", owner=ANN))


def test_open_two_phase_transactions_are_counted_and_plain_ones_go_on():
    bench = Bench(two_phase_per_owner_max=1)
    first = bench.init(id="a", owner=ANN, two_phase=True).producer
    second = bench.init(id="b", owner=ANN, two_phase=True).producer
    plain = bench.init(id="c", owner=ANN).producer
    ok(bench.add(first, id="a"))

    assert code(bench.add(second, id="b")) == ErrorCode.TRANSACTION_ABORTABLE
    ok(bench.add(first, P0, id="a"))
    ok(bench.add(plain, id="c"))
    bench.restart()
    assert code(bench.add(second, id="b")) == ErrorCode.TRANSACTION_ABORTABLE
    ok(bench.end(first, id="a"))
    second = ok(bench.end(second, ABORT, id="b")).producer
    ok(bench.add(second, id="b"))


def test_recovery_is_never_refused():
    bench = Bench(two_phase_per_owner_max=1, ids_per_owner_max=1)
    pair = bench.init(id="a", owner=ANN, two_phase=True).producer
    ok(bench.add(pair, id="a"))

    kept = ok(bench.init(id="a", owner=ANN, two_phase=True, keep=True))

    assert kept.ongoing == pair


def test_plain_transaction_is_not_kept_as_one_too_many():
    bench = Bench(two_phase_per_owner_max=1)
    first = bench.init(id="a", owner=ANN, two_phase=True).producer
    plain = bench.init(id="b", owner=ANN).producer
    ok(bench.add(first, id="a"))
    ok(bench.add(plain, id="b"))

    refused = bench.init(id="b", owner=ANN, two_phase=True, keep=True)

    assert code(refused) == ErrorCode.POLICY_VIOLATION
    ok(bench.end(plain, id="b"))


def test_nobody_is_limited_where_no_owner_is_known():
    bench = Bench(ids_per_owner_max=1)
    ok(bench.init(id="a"))

    ok(bench.init(id="b"))
    ok(bench.init(id="b", owner=ANN))
    assert bench.at("b").owner == ANN
