"""What every state store must pass, as a suite that anybody can run on a store of their own.

    from dualwrite.adapters.conformance import StoreConformance

    class MyDatabase:                      # see `Database` for what each member means
        ...

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def database(self):
            yield MyDatabase(...)          # empty for every test

Call `pytest.register_assert_rewrite("dualwrite.adapters.conformance")` in conftest.py for full
messages. The tests name the rule of the protocol they hold, see `dualwrite.store`.
"""

import asyncio
import threading
from typing import Any, Protocol

import pytest

from dualwrite.errors import ConfigurationError, DualWriteError, Fenced, InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import lease_slots, take_over
from dualwrite.store import (
    NOT_CLAIMED_YET,
    CannotDecideYet,
    Heuristic,
    Lease,
    LocalTransaction,
    ResourceName,
    Store,
)

FIRST = PreparedTxnState(7, 1)
SECOND = PreparedTxnState(7, 2)
LONG_LEASE_SECONDS = 60.0
THREADS = 4


class Database(Protocol):
    """One empty database under test."""

    waits_for_writer: bool
    """True if a claim waits for a transaction that has remembered a state and is still open; a
    store that checks fences only while committing lets the claim win at once."""
    has_clock_leases: bool
    """True if a lease ends by itself after its seconds; False if it ends with its holder."""
    absent_resource: ResourceName
    """A resource that transactions of this store do not have."""

    def open(self) -> Store:
        """Another store object on the same database; the database closes it at the end."""
        ...

    def write(self, transaction: LocalTransaction, key: str) -> None:
        """Write one piece of data in the transaction."""
        ...

    def has(self, key: str) -> bool:
        """True if that piece of data is there, committed."""
        ...


def dual_write(
    database: Database, store: Store, transactional_id: str, key: str, state: PreparedTxnState
) -> int:
    """Claim the id and commit one piece of data with a state; give the fence."""
    fence = store.claim(transactional_id).fence
    transaction = store.begin()
    database.write(transaction, key)
    transaction.flush()
    store.remember(transaction.handle, transactional_id, state, fence)
    transaction.commit()
    return fence


def remember_and_commit(store: Store, transaction: LocalTransaction, fence: int) -> None:
    """End a transaction of `app-0` as a writer does; a store may notice the fence in either step."""
    try:
        store.remember(transaction.handle, "app-0", FIRST, fence)
        transaction.commit()
    except Fenced:
        transaction.rollback()
        raise


class StoreConformance:
    """The suite. Subclass it and give a fixture `database`."""

    # Claims -----------------------------------------------------------------------------------

    def test_first_claim_makes_the_row(self, database: Database) -> None:
        store = database.open()

        claim = store.claim("app-0", owner="me")

        assert claim.state == PreparedTxnState.NONE
        assert (claim.fence, claim.seq, claim.state_fence, claim.cluster_id) == (1, 0, 0, "")
        row = store.row("app-0")
        assert row is not None
        assert (row.owner, row.fence) == ("me", 1)

    def test_every_claim_moves_the_fence_and_may_leave_the_owner(self, database: Database) -> None:
        store = database.open()
        fences = [store.claim("app-0", owner="me").fence, store.claim("app-0").fence]

        assert fences == [1, 2]
        row = database.open().row("app-0")
        assert row is not None
        assert row.owner == "me"

    def test_claim_with_expectation_succeeds_once(self, database: Database) -> None:
        store = database.open()
        fence = store.claim("app-0", NOT_CLAIMED_YET, owner="me").fence

        assert store.claim("app-0", fence, owner="you").fence == fence + 1
        with pytest.raises(Fenced):
            store.claim("app-0", fence, owner="him")
        with pytest.raises(Fenced):
            store.claim("app-0", NOT_CLAIMED_YET, owner="her")
        row = store.row("app-0")
        assert row is not None
        assert (row.owner, row.fence) == ("you", fence + 1)

    def test_claim_expecting_a_row_makes_none(self, database: Database) -> None:
        store = database.open()

        with pytest.raises(Fenced):
            store.claim("app-0", 3)
        assert store.row("app-0") is None

    def test_of_concurrent_claims_with_one_expectation_one_wins(self, database: Database) -> None:
        stores = [database.open() for _ in range(THREADS)]
        fence = stores[0].claim("app-0").fence
        start = threading.Barrier(THREADS)
        results: list[object] = []

        def run(store: Store, owner: str) -> None:
            start.wait()
            try:
                results.append(store.claim("app-0", fence, owner=owner).fence)
            except DualWriteError as error:
                results.append(type(error))

        threads = [
            threading.Thread(target=run, args=(store, f"owner-{number}"))
            for number, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [r for r in results if r == fence + 1] == [fence + 1]
        assert set(results) <= {fence + 1, Fenced, CannotDecideYet}

    # States -----------------------------------------------------------------------------------

    def test_state_and_data_are_committed_together(self, database: Database) -> None:
        fence = dual_write(database, database.open(), "app-0", "a", FIRST)

        other = database.open()
        assert database.has("a")
        assert other.recall("app-0", fence) == FIRST
        claim = other.claim("app-0")
        assert (claim.state, claim.seq, claim.state_fence) == (FIRST, 1, fence)

    def test_state_and_data_are_rolled_back_together(self, database: Database) -> None:
        store = database.open()
        fence = dual_write(database, store, "app-0", "a", FIRST)
        transaction = store.begin()
        database.write(transaction, "b")
        transaction.flush()
        store.remember(transaction.handle, "app-0", SECOND, fence)

        transaction.rollback()
        transaction.rollback()

        assert not database.has("b")
        assert store.recall("app-0", fence) == FIRST

    @pytest.mark.parametrize("wrong", [None, 7, b"7:1", "7", ("7", 1)], ids=repr)
    def test_what_is_no_state_is_never_written(self, database: Database, wrong: Any) -> None:
        """A row with a state that nobody can read could not even be claimed any more."""
        store = database.open()
        fence = dual_write(database, store, "app-0", "a", FIRST)
        transaction = store.begin()
        database.write(transaction, "b")
        with pytest.raises((TypeError, ValueError)):
            store.remember(transaction.handle, "app-0", wrong, fence)
        transaction.rollback()

        assert not database.has("b")
        assert database.open().claim("app-0").state == FIRST

    def test_state_may_be_given_as_its_text(self, database: Database) -> None:
        store = database.open()
        fence = store.claim("app-0").fence
        transaction = store.begin()
        store.remember(transaction.handle, "app-0", str(FIRST), fence)
        transaction.commit()

        assert store.recall("app-0", fence) == FIRST

    @pytest.mark.parametrize("wrong", [None, 7, "", "a\0b", "x" * 256, b"app-0"], ids=repr)
    def test_what_is_no_id_is_refused(self, database: Database, wrong: Any) -> None:
        store = database.open()
        for call in (store.claim, lambda id: store.recall(id, 1), lambda id: store.release(id, 1)):
            with pytest.raises(ConfigurationError):
                call(wrong)
        transaction = store.begin()
        with pytest.raises(ConfigurationError):
            store.remember(transaction.handle, wrong, FIRST, 1)
        transaction.rollback()
        assert store.rows() == []

    def test_several_transactions_run_under_one_claim(self, database: Database) -> None:
        store = database.open()
        fence = store.claim("app-0").fence
        for epoch in range(3):
            transaction = store.begin()
            database.write(transaction, f"row-{epoch}")
            store.remember(transaction.handle, "app-0", PreparedTxnState(7, epoch), fence)
            transaction.commit()

        row = store.row("app-0")
        assert row is not None
        assert (str(row.state), row.seq, row.fence) == ("7:2", 3, fence)
        assert row.updated_at is not None
        assert row.updated_at.tzinfo is not None

    def test_overtaken_writer_writes_nothing(self, database: Database) -> None:
        zombie, newer = database.open(), database.open()
        fence = zombie.claim("app-0", owner="zombie").fence
        transaction = zombie.begin()
        database.write(transaction, "a")

        # SQLite has one write lock, so the zombie must not hold it yet.
        claim = newer.claim("app-0", owner="newer") if database.waits_for_writer else None
        if claim is None:
            zombie.remember(transaction.handle, "app-0", FIRST, fence)
            claim = newer.claim("app-0", owner="newer")

        with pytest.raises(Fenced):
            remember_and_commit(zombie, transaction, fence)
        assert not database.has("a")
        assert newer.recall("app-0", claim.fence) == PreparedTxnState.NONE

    def test_claim_never_decides_over_an_open_writer(self, database: Database) -> None:
        writer, recoverer = database.open(), database.open()
        fence = writer.claim("app-0").fence
        transaction = writer.begin()
        database.write(transaction, "a")
        transaction.flush()
        writer.remember(transaction.handle, "app-0", FIRST, fence)

        if database.waits_for_writer:
            with pytest.raises(CannotDecideYet):
                recoverer.claim("app-0")
            transaction.commit()
            assert recoverer.claim("app-0").state == FIRST
            assert database.has("a")
        else:
            claim = recoverer.claim("app-0")
            with pytest.raises(Fenced):
                transaction.commit()
            assert recoverer.recall("app-0", claim.fence) == PreparedTxnState.NONE
            assert not database.has("a")

    def test_stale_recoverer_reads_nothing(self, database: Database) -> None:
        store = database.open()
        stale = dual_write(database, store, "app-0", "a", FIRST)
        store.claim("app-0")

        with pytest.raises(Fenced):
            store.recall("app-0", stale)
        with pytest.raises(Fenced):
            store.recall("app-1", 1)

    def test_state_without_a_row_is_refused(self, database: Database) -> None:
        store = database.open()
        transaction = store.begin()
        database.write(transaction, "a")

        with pytest.raises(Fenced):
            remember_and_commit(store, transaction, 1)
        assert not database.has("a")

    def test_empty_state_is_remembered_as_none(self, database: Database) -> None:
        fence = dual_write(database, database.open(), "app-0", "a", PreparedTxnState.NONE)

        assert database.open().recall("app-0", fence) == PreparedTxnState.NONE

    def test_transaction_ends_once(self, database: Database) -> None:
        store = database.open()
        dual_write(database, store, "app-0", "a", FIRST)
        transaction = store.begin()
        transaction.rollback()

        with pytest.raises(InvalidTxnState):
            transaction.commit()

    def test_absent_resource_is_named(self, database: Database) -> None:
        transaction = database.open().begin()

        with pytest.raises(ConfigurationError):
            transaction.resource(database.absent_resource)
        transaction.rollback()

    def test_foreign_handle_is_refused(self, database: Database) -> None:
        with pytest.raises(ConfigurationError):
            database.open().begin(object())

    # Ids and rows -----------------------------------------------------------------------------

    def test_rows_of_an_app_are_matched_in_full(self, database: Database) -> None:
        store = database.open()
        for transactional_id in ("a-10", "a-2", "a-b-1", "ab-1", "a-x", "A-3", "a-", "a-1.5"):
            store.claim(transactional_id)

        assert [row.transactional_id for row in store.rows("a")] == ["a-2", "a-10"]
        assert [row.transactional_id for row in store.rows("a-b")] == ["a-b-1"]
        assert len(store.rows()) == 8

    @pytest.mark.parametrize(
        ("one", "other"),
        [("app-A", "app-a"), ("app", "app "), ("a/b", "a%2Fb"), (".", ".."), ("ä", "a")],
    )
    def test_ids_are_compared_byte_by_byte(self, database: Database, one: str, other: str) -> None:
        store = database.open()
        store.claim(one, owner="one")
        store.claim(other, owner="other")

        owners = {row.transactional_id: row.owner for row in store.rows()}
        assert owners == {one: "one", other: "other"}

    @pytest.mark.parametrize("transactional_id", ["", "a\0b", "x" * 256, "ä" * 128])
    def test_id_that_cannot_be_kept_is_refused(
        self, database: Database, transactional_id: str
    ) -> None:
        with pytest.raises(ConfigurationError):
            database.open().claim(transactional_id)

    def test_longest_id_is_kept(self, database: Database) -> None:
        store = database.open()
        store.claim("x" * 255)

        row = store.row("x" * 255)
        assert row is not None
        assert row.fence == 1

    def test_release_gives_up_the_owner_but_not_the_state(self, database: Database) -> None:
        store = database.open()
        fence = dual_write(database, store, "app-0", "a", FIRST)
        fence = store.claim("app-0", fence, owner="me").fence

        assert store.release("app-0", fence)
        row = store.row("app-0")
        assert row is not None
        assert (row.owner, row.lease, row.state) == ("", Lease.NONE, FIRST)

    def test_release_after_a_newer_claim_changes_nothing(self, database: Database) -> None:
        store = database.open()
        stale = store.claim("app-0", owner="old").fence
        store.claim("app-0", owner="new")

        assert not store.release("app-0", stale)
        row = store.row("app-0")
        assert row is not None
        assert row.owner == "new"

    def test_cluster_is_bound_under_the_fence(self, database: Database) -> None:
        store = database.open()
        stale = store.claim("app-0").fence
        fence = store.claim("app-0").fence

        store.bind_cluster("app-0", fence, "cluster-a")
        with pytest.raises(Fenced):
            store.bind_cluster("app-0", stale, "cluster-b")
        assert store.claim("app-0").cluster_id == "cluster-a"

    # Leases and slots -------------------------------------------------------------------------

    def test_lease_decides_whether_an_owner_lives(self, database: Database) -> None:
        store = database.open()
        store.claim("app-0", owner="me")
        assert [row.lease for row in store.rows("app")] == [Lease.EXPIRED]

        store.lease("me", LONG_LEASE_SECONDS)
        assert [row.lease for row in database.open().rows("app")] == [Lease.LIVE]
        assert store.renew("me", LONG_LEASE_SECONDS)

        store.end_lease("me")
        assert [row.lease for row in store.rows("app")] == [Lease.EXPIRED]
        assert not store.renew("me", LONG_LEASE_SECONDS)

    def test_lease_that_ran_out_is_not_renewed(self, database: Database) -> None:
        if not database.has_clock_leases:
            pytest.skip("leases of this store end with their holder, not by a clock")
        store = database.open()
        store.claim("app-0", owner="me")
        store.lease("me", -1.0)

        assert [row.lease for row in store.rows("app")] == [Lease.EXPIRED]
        assert not store.renew("me", LONG_LEASE_SECONDS)

    def test_two_instances_lease_different_slots(self, database: Database) -> None:
        one, two = database.open(), database.open()
        one.lease("one", LONG_LEASE_SECONDS)
        two.lease("two", LONG_LEASE_SECONDS)

        mine = lease_slots(one, "app", "one", 2, is_gone=lambda _: False)
        yours = lease_slots(two, "app", "two", 2, is_gone=lambda _: False)

        assert [slot.transactional_id for slot in mine] == ["app-0", "app-1"]
        assert [slot.transactional_id for slot in yours] == ["app-2", "app-3"]

    def test_slots_of_a_dead_instance_are_taken_over_with_their_states(
        self, database: Database
    ) -> None:
        store = database.open()
        dual_write(database, store, "app-9", "a", FIRST)
        store.claim("app-9", owner="dead")
        store.lease("live", LONG_LEASE_SECONDS)
        store.claim("app-1", owner="live")

        taken = take_over(store, "app", "me", is_gone=lambda _: False)

        assert [(slot.transactional_id, slot.claim.state) for slot in taken] == [("app-9", FIRST)]

    # Forced ends and kept messages ------------------------------------------------------------

    def test_forced_ends_are_written_down(self, database: Database) -> None:
        store = database.open()
        done = Heuristic(
            transactional_id="app-0",
            state=FIRST,
            action="abort",
            reason="the database was lost: “no backup”",
            recorded_by="operator",
        )
        store.record_heuristic(done)

        (found,) = database.open().heuristics("app-0")
        assert (found.state, found.action, found.reason) == (FIRST, "abort", done.reason)
        assert found.recorded_at is not None
        assert store.heuristics("app-1") == []
        assert len(store.heuristics()) == 1

    def test_messages_are_kept_with_their_transaction_only(self, database: Database) -> None:
        store = database.open()
        fence = store.claim("app-0").fence
        messages = [b"one", b"", b"\x00\xff" * 1000]
        for state, is_committed in ((FIRST, True), (SECOND, False)):
            transaction = store.begin()
            database.write(transaction, str(state))
            store.keep_messages(transaction.handle, "app-0", state, messages)
            store.remember(transaction.handle, "app-0", state, fence)
            if is_committed:
                transaction.commit()
            else:
                transaction.rollback()

        assert store.kept_messages("app-0", FIRST) == messages
        assert store.kept_messages("app-0", SECOND) == []
        store.forget_messages("app-0", SECOND)
        assert store.kept_messages("app-0", FIRST) == messages
        store.forget_messages("app-0", FIRST)
        assert store.kept_messages("app-0", FIRST) == []

    def test_next_transaction_replaces_the_kept_messages(self, database: Database) -> None:
        store = database.open()
        fence = store.claim("app-0").fence
        for state, messages in ((FIRST, [b"1", b"2"]), (SECOND, [b"3"])):
            transaction = store.begin()
            database.write(transaction, str(state))
            store.keep_messages(transaction.handle, "app-0", state, messages)
            store.remember(transaction.handle, "app-0", state, fence)
            transaction.commit()

        assert store.kept_messages("app-0", FIRST) == []
        assert store.kept_messages("app-0", SECOND) == [b"3"]

    # Durability and the async face ------------------------------------------------------------

    def test_acknowledged_commits_are_durable(self, database: Database) -> None:
        durability = database.open().durability()

        durability.require()
        assert durability.checks
        assert all(check.name and check.wanted for check in durability.checks)

    def test_async_face_is_the_same_store(self, database: Database) -> None:
        async def run() -> None:
            store = database.open().aio()
            await store.lease("me", LONG_LEASE_SECONDS)
            (slot,) = await store.lease_slots("app", "me", 1, is_gone=lambda _: False)
            transaction = await store.begin()
            await store.keep_messages(transaction.handle, "app-0", FIRST, [b"kept"])
            await transaction.flush()
            await store.remember(transaction.handle, "app-0", FIRST, slot.claim.fence)
            await transaction.commit()
            assert await store.recall("app-0", slot.claim.fence) == FIRST
            assert await store.kept_messages("app-0", FIRST) == [b"kept"]
            assert [row.lease for row in await store.rows("app")] == [Lease.LIVE]
            assert await store.take_over("app", "you", is_gone=lambda _: False) == []
            transaction = await store.begin()
            await store.remember(transaction.handle, "app-0", SECOND, slot.claim.fence)
            await transaction.rollback()
            assert await store.release("app-0", slot.claim.fence)
            (await store.durability()).require()
            await store.end_lease("me")
            await store.close()

        asyncio.run(run())
        row = database.open().row("app-0")
        assert row is not None
        assert (row.state, row.owner) == (FIRST, "")
