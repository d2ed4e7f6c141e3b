"""Planted bugs, each with the tests that must find it.

A mutant replaces one piece of text, which must occur exactly once in its file.
"""

from dataclasses import dataclass

COORDINATOR = "broker/transactions/coordinator.py"
TRANSITIONS = "broker/transactions/transitions.py"
RECOVERY = "broker/storage/recovery.py"
JOURNAL_READER = "broker/storage/journal_reader.py"
AUTHORIZER = "broker/security/authorizer.py"
WRITE_PATH = "dualwrite/write_path.py"
PRODUCERS = "broker/producers/states.py"

TRANSACTION_TESTS = ("tests/transactions",)
STORAGE_TESTS = ("tests/storage/test_damage.py", "tests/storage/test_crash.py")
AUTHORIZER_TESTS = ("tests/security/test_authorizer.py",)
DUAL_WRITE_TESTS = ("tests/dualwrite", "-k", "not postgresql and not resume")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    # The coordinator
    Mutant(
        "a prepared transaction times out",
        "broker/transactions/state.py",
        "if self.state is not TxnState.ONGOING or self.is_two_phase:",
        "if self.state is not TxnState.ONGOING:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "the pair of a kept transaction still writes",
        COORDINATOR,
        "if known.is_kept and producer == known.pair:",
        "if False:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "a retried end gets success for the other outcome",
        COORDINATOR,
        "            if before.state is not _completed(commit):\n",
        "            if False:\n",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "the last epoch is given out",
        COORDINATOR,
        "if pair.producer_epoch >= self.settings.epoch_max - 1:",
        "if pair.producer_epoch >= self.settings.epoch_max:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "a zombie's init ends its successor's transaction",
        COORDINATOR,
        "if expected not in (NO_PAIR, before.client_pair):",
        "if False:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "keepPreparedTxn keeps nothing",
        COORDINATOR,
        "        if keep_prepared:\n            return self._keep",
        "        if keep_prepared and before.is_kept:\n            return self._keep",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "markers do not move the epoch on",
        COORDINATOR,
        "return min(transaction.producer_epoch + 1, self.settings.epoch_max)",
        "return transaction.producer_epoch",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "a transaction completes without an offline partition's marker",
        COORDINATOR,
        "        if offline:\n            return Decision(\n                error=",
        "        if False:\n            return Decision(\n                error=",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "two-phase commit without an epoch per transaction",
        COORDINATOR,
        "settings.transaction_version < 2:",
        "settings.transaction_version < 0:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "version 1 ends a two-phase transaction",
        COORDINATOR,
        "if before.is_kept or before.is_two_phase:",
        "if False:",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "a producer that asks again for its end is fenced",
        TRANSITIONS,
        "last_producer_epoch=ending.retry.producer_epoch,",
        "last_producer_epoch=-1,",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "init forgets how the last transaction ended",
        TRANSITIONS,
        "        last_outcome=before.last_outcome,\n        last_cause=before.last_cause,\n"
        "    )\n\n\ndef keep",
        "    )\n\n\ndef keep",
        TRANSACTION_TESTS,
    ),
    # Producers and readers
    Mutant(
        "a batch that comes again is written again",
        PRODUCERS,
        "            if duplicate is not None:\n",
        "            if False:\n",
        ("tests/producers",),
    ),
    Mutant(
        "an old epoch may write",
        PRODUCERS,
        "if state is not None and header.producer_epoch < state.epoch:",
        "if False:",
        ("tests/producers",),
    ),
    Mutant(
        "read_committed reads open transactions",
        "broker/handlers/fetch.py",
        "upper = last_stable if self._reads_committed else log.high_watermark",
        "upper = log.high_watermark",
        ("tests/broker/test_pitfalls.py", "tests/broker/test_fetch.py"),
    ),
    Mutant(
        "readers are not told what was aborted",
        "broker/handlers/fetch.py",
        "if entry.first_offset <= end",
        "if entry.first_offset > end",
        ("tests/broker/test_pitfalls.py", "tests/broker/test_fetch.py"),
    ),
    Mutant(
        "a reader that does not read takes the memory",
        "broker/unsent.py",
        "return max(self._limit - self._total, 1)",
        "return self._limit",
        ("tests/faults/test_network.py", "-k", "bounded_memory"),
    ),
    # Journal and recovery
    Mutant(
        "a segment that is shorter than it was passes for whole",
        RECOVERY,
        "        elif size < segment.size:\n",
        "        elif False:\n",
        STORAGE_TESTS,
    ),
    Mutant(
        "a damaged journal is cut off in the middle",
        JOURNAL_READER,
        "                and header.first_position > self.tip.position + 1\n",
        "                and False\n",
        STORAGE_TESTS,
    ),
    Mutant(
        "the journal's checksums are not compared",
        JOURNAL_READER,
        "crc32c(data[offset + 4 : start], chain)) != crc:",
        "crc32c(data[offset + 4 : start], chain)) < 0:",
        STORAGE_TESTS,
    ),
    Mutant(
        "the journal is not synced",
        "broker/storage/journal.py",
        "        sync(file, slot_path(slot.name))\n",
        "        pass\n",
        STORAGE_TESTS,
    ),
    Mutant(
        "aborted transactions are forgotten by a restart",
        RECOVERY,
        "    if state.aborted_count:\n",
        "    if False:\n",
        ("tests/storage",),
    ),
    Mutant(
        "replies leave before they are durable",
        "broker/node.py",
        "while parked and parked[0][0] <= durable:",
        "while parked:",
        ("tests/broker/test_node.py", "tests/broker/test_restart.py"),
    ),
    Mutant(
        "a busy disk keeps chores from running",
        "broker/server.py",
        "if self.node.next_deadline_ms() <= now.steady_ms:",
        "if False:",
        ("tests/broker/test_busy_disk.py",),
    ),
    Mutant(
        "a jump of the clock deletes old records",
        "broker/storage/retention.py",
        "if last.wall_ms > 0 and not -JUMP_BACK_MS <= drift <= JUMP_FORWARD_MS:",
        "if False:",
        ("tests/storage/test_retention.py",),
    ),
    # The authorizer
    Mutant(
        "an allowing rule wins over a denying one",
        AUTHORIZER,
        "                if binding.operation in DENIED_BY[operation]:\n                    return False\n",
        "                continue\n",
        AUTHORIZER_TESTS,
    ),
    Mutant(
        "removing one rule drops its neighbours (CVE-2024-27309)",
        AUTHORIZER,
        "        index[key].discard(binding)\n",
        "        index[key].clear()\n",
        AUTHORIZER_TESTS,
    ),
    Mutant(
        "verdicts outlive the rules that they rest on",
        AUTHORIZER,
        '                raise InvalidBinding(f"not a record of the authorizer: {kind!r}")\n'
        "        self._verdicts.clear()\n",
        '                raise InvalidBinding(f"not a record of the authorizer: {kind!r}")\n',
        AUTHORIZER_TESTS,
    ),
    Mutant(
        "a rule for one name covers all names that begin with it",
        AUTHORIZER,
        "return self._prefixed if binding.pattern_type is PatternType.PREFIXED else self._literal",
        "return self._prefixed",
        AUTHORIZER_TESTS,
    ),
    # The order of a dual write
    Mutant(
        "an unknown COMMIT is aborted in Kafka",
        WRITE_PATH,
        "        if slot.claim.state == unit.state:\n",
        "        if False:\n",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "what was undone in the database stays open in Kafka",
        WRITE_PATH,
        "        finally:\n            yield from self._abort(unit)\n",
        "        finally:\n            pass\n",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "the pair is not remembered with the data",
        WRITE_PATH,
        "            yield from self._mode.remember(unit)\n",
        "            pass\n",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "a writer that lost its slot may still decide",
        "adapters/sql/operations.py",
        '            .where(table.c.transactional_id == bindparam("id"), '
        'table.c.fence == bindparam("mine"))\n',
        '            .where(table.c.transactional_id == bindparam("id"))\n',
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "recovery decides from what it read before the init",
        "dualwrite/two_phase.py",
        "        state = yield from recall(around, slot)\n",
        "        state = slot.claim.state\n",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "recovery aborts what is prepared",
        "dualwrite/two_phase.py",
        "yield from call(producer.init_transactions, keep_prepared_txn=True)",
        "yield from call(producer.init_transactions, keep_prepared_txn=False)",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "whatever is open is committed",
        "dualwrite/outcome.py",
        'return "commit" if ongoing == remembered else "abort"',
        'return "commit"',
        ("tests/dualwrite/test_outcome.py",),
    ),
    # The client
    Mutant(
        "complete commits whatever is prepared",
        "dualwrite/flows/transaction.py",
        "        if state == self.prepared:\n            yield from self.commit()\n",
        "        if state.has_transaction:\n            yield from self.commit()\n",
        ("tests/client/test_transaction_flows.py", "tests/client/test_producer.py"),
    ),
    Mutant(
        "an abort does not wait for batches under way",
        "dualwrite/flows/transaction.py",
        "            while self.sender.has_in_flight:\n",
        "            while False:\n",
        ("tests/faults/test_network.py", "-k", "under_way"),
    ),
    Mutant(
        "sequences go on under a new pair",
        "dualwrite/flows/sending.py",
        "            queue.restart_sequences()\n",
        "            pass\n",
        ("tests/client/test_sending.py", "tests/client/test_producer.py"),
    ),
)
