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
GROUP_OFFSETS = "broker/groups/offsets.py"
SCRAM = "broker/security/scram.py"
RESUME = "dualwrite/resume.py"
UPKEEP = "dualwrite/upkeep.py"
SPARK_LEDGER = "recipes/spark/ledger.py"
SPARK_COORDINATOR = "recipes/spark/coordinator.py"

TRANSACTION_TESTS = ("tests/transactions",)
STORAGE_TESTS = ("tests/storage/test_damage.py", "tests/storage/test_crash.py")
AUTHORIZER_TESTS = ("tests/security/test_authorizer.py",)
LOGIN_TESTS = ("tests/security/test_scram.py", "tests/security/test_sasl.py")
GROUP_TESTS = ("tests/groups/test_offsets.py", "tests/groups/test_versions.py")
DUAL_WRITE_TESTS = ("tests/dualwrite", "-k", "not postgresql and not resume")
RESUME_TESTS = ("tests/dualwrite/test_resume.py",)
SLOT_TESTS = (
    "tests/adapters/test_slot_ids.py",
    "tests/dualwrite/test_recovery.py",
    "tests/dualwrite/test_fencing.py",
    "-k",
    "not postgresql",
)
SPARK_TESTS = (
    "tests/spark/test_protocol_model.py",
    "tests/spark/test_decision_logs.py",
    "tests/spark/test_zombies.py",
    "-k",
    "not postgres and not hundred",
)


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
    Mutant(
        "an abort of nothing hides how the last transaction ended",
        TRANSITIONS,
        "        last_outcome=outcome if ends else before.last_outcome,",
        "        last_outcome=outcome,",
        TRANSACTION_TESTS,
    ),
    Mutant(
        "activity keeps a transaction from timing out",
        TRANSITIONS,
        "        start_steady_ms=now.steady_ms if starts else before.start_steady_ms,\n"
        "        # Whoever",
        "        start_steady_ms=now.steady_ms,\n        # Whoever",
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
        "a gap in the sequence is no reason to refuse",
        PRODUCERS,
        "        return None if sequence == expected else _out_of_order(header, expected)",
        "        return None",
        ("tests/producers",),
    ),
    Mutant(
        "a new epoch writes before the old one's marker",
        PRODUCERS,
        "            if header.producer_epoch == state.epoch:\n                return None\n"
        "            # Consumers",
        "            return None\n            # Consumers",
        ("tests/producers",),
    ),
    Mutant(
        "a producer with an open transaction is forgotten",
        PRODUCERS,
        "        return state.first_offset is None and idle_ms",
        "        return idle_ms",
        ("tests/producers",),
    ),
    Mutant(
        "readers pass a marker that is not durable",
        "broker/producers/unstable.py",
        "        while ended and ended[0][1] < high_watermark:",
        "        while ended and ended[0][1] <= high_watermark:",
        ("tests/producers",),
    ),
    # Groups
    Mutant(
        "an older transaction's offset wins over a newer commit",
        GROUP_OFFSETS,
        "        return existing is not None and existing.record_offset > value.record_offset",
        "        return False",
        GROUP_TESTS,
    ),
    Mutant(
        "nobody is told that an offset may still change",
        GROUP_OFFSETS,
        "        return place in self._writers.get(group, {})",
        "        return False",
        GROUP_TESTS,
    ),
    Mutant(
        "a member of an earlier generation commits",
        "broker/groups/commits.py",
        "    if generation != group.generation:\n        return ErrorCode.ILLEGAL_GENERATION\n",
        "",
        GROUP_TESTS,
    ),
    Mutant(
        "offsets outlive their topic and meet the next of its name",
        "broker/node.py",
        "        for decision in self.groups.topic_deleted(topic.name, now):\n"
        "            self.settle(decision, now)\n",
        "",
        GROUP_TESTS,
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
        "a new journal file has no durable name",
        "broker/storage/journal.py",
        "        # Without this a power loss could take the whole file, fdatasync or not.\n"
        "        sync_names(self._disk, JOURNAL_DIR)\n",
        "",
        STORAGE_TESTS,
    ),
    Mutant(
        "names that a killed process left are not made durable",
        RECOVERY,
        '    for directory in ("", JOURNAL_DIR, LOGS_DIR):\n        sync_names(disk, directory)\n',
        "",
        STORAGE_TESTS,
    ),
    Mutant(
        "the checkpoint is not synced before it takes its place",
        "broker/storage/checkpoint.py",
        "        sync(file, _NEW)\n",
        "        pass\n",
        STORAGE_TESTS,
    ),
    Mutant(
        "what only the checkpoint names is removed",
        RECOVERY,
        "    named = {path for data in checkpoint.logs for path in _paths(LogState.decode(data))}",
        "    named: set[str] = set()",
        STORAGE_TESTS,
    ),
    Mutant(
        "an index that is made anew believes every batch",
        "broker/storage/segment.py",
        "header.base_offset < expected or not check_crc(batch, header)",
        "header.base_offset < expected",
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
    # Logins
    Mutant(
        "a proof for another nonce is taken (CVE-2024-56128)",
        SCRAM,
        '        if not hmac.compare_digest(found["nonce"], self._nonce):\n'
        '            raise self._failed("the nonce is not the one of this exchange")\n',
        "",
        LOGIN_TESTS,
    ),
    Mutant(
        "one acts for another by an authorization id (CVE-2017-12610)",
        SCRAM,
        '        if found["authzid"] is not None and self._name(found["authzid"]) != user:',
        "        if False:",
        LOGIN_TESTS,
    ),
    Mutant(
        "a made-up user's password is right",
        SCRAM,
        "        if not (is_proved and self._is_real):",
        "        if not is_proved:",
        LOGIN_TESTS,
    ),
    Mutant(
        "an exchange goes on after its end",
        SCRAM,
        "        step, self._step = self._step, _Step.OVER",
        "        step = self._step",
        LOGIN_TESTS,
    ),
    Mutant(
        "a connection becomes somebody else",
        "broker/security/sasl.py",
        "        if self.principal is not None and self.principal != principal:",
        "        if False:",
        LOGIN_TESTS,
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
    # Resume mode
    Mutant(
        "no copy of the messages is kept",
        RESUME,
        "        yield from call(store.keep_messages, handle, name, unit.state, kept)\n",
        "",
        RESUME_TESTS,
    ),
    Mutant(
        "the copy goes before Kafka has committed",
        RESUME,
        "        yield from call(slot.producer.commit_transaction)\n        # The next",
        "        yield from call(self._around.store.forget_messages, slot.transactional_id, state)\n"
        "        yield from call(slot.producer.commit_transaction)\n        # The next",
        RESUME_TESTS,
    ),
    Mutant(
        "what was sent again is not remembered",
        RESUME,
        "            yield from self.remember(unit)\n",
        "",
        RESUME_TESTS,
    ),
    Mutant(
        "an overtaken recoverer aborts its successor's transaction",
        RESUME,
        '            if int(kafka_id.rpartition(".")[2]) >= slot.fence:\n',
        "            if False:\n",
        RESUME_TESTS,
    ),
    Mutant(
        "a doubt is sent again",
        RESUME,
        "        return found is Fate.ABORTED\n",
        "        return found is not Fate.COMMITTED\n",
        RESUME_TESTS,
    ),
    Mutant(
        "COMMIT is sent when hardly any time is left",
        RESUME,
        "        if elapsed > self._around.resume_timeout / 2:",
        "        if False:",
        RESUME_TESTS,
    ),
    Mutant(
        "COMMIT does not wait for the broker",
        RESUME,
        "        pair = yield from call(producer.flush_transaction)",
        "        pair = yield from call(producer.start_prepare)",
        ("tests/dualwrite/test_failures.py", "-k", "stops_while"),
    ),
    # Leases and slots
    Mutant(
        "a lease that was lost is not taken again",
        UPKEEP,
        "            yield from call(self._around.store.lease, name, seconds)\n\n    def close",
        "\n    def close",
        SLOT_TESTS,
    ),
    Mutant(
        "nobody takes over from a peer that died",
        UPKEEP,
        "        yield from self._take_over_from_the_dead()\n",
        "",
        SLOT_TESTS,
    ),
    Mutant(
        "what is open under an id without an owner stays open",
        UPKEEP,
        "        refusals = yield from self._recover_all()\n"
        "        yield from self._sweep_broker()\n",
        "        refusals = yield from self._recover_all()\n",
        SLOT_TESTS,
    ),
    Mutant(
        "upkeep recovers a slot that is in use",
        "dualwrite/slot_pool.py",
        "        self._in_use.add(slot.transactional_id)",
        "        pass",
        ("tests/dualwrite/test_dual_write.py", "-k", "slot_alone"),
    ),
    # Spark
    Mutant(
        "two attempts at a task begin in one slot",
        "recipes/spark/transactions.py",
        "            k = (attempt_number + busy) % SLOTS_PER_PARTITION_MAX",
        "            k = busy",
        SPARK_TESTS,
    ),
    Mutant(
        "an overtaken driver may come back",
        SPARK_LEDGER,
        "        if token in head.older:",
        "        if False:",
        SPARK_TESTS,
    ),
    Mutant(
        "an attempt that was overtaken or closed decides",
        SPARK_LEDGER,
        "        if not ledger.may_decide(decision.attempt):",
        "        if False:",
        SPARK_TESTS,
    ),
    Mutant(
        "a batch is decided twice",
        SPARK_LEDGER,
        "            raise AlreadyDecided(",
        "            return {}\n            raise AlreadyDecided(",
        SPARK_TESTS,
    ),
    Mutant(
        "a coordinator that was overtaken ends transactions",
        SPARK_COORDINATOR,
        "        if strays and not self._decisions.read().is_newest(nonce):",
        "        if False:",
        SPARK_TESTS,
    ),
    Mutant(
        "a decision counts as finished before its transactions have ended",
        SPARK_COORDINATOR,
        "        settled = self._settle(nonce, ledger.pending)\n        if not accept_loss:\n"
        "            settled.require_nothing_lost(self.sink)\n        self._finish(ledger.pending)",
        "        self._finish(ledger.pending)\n"
        "        settled = self._settle(nonce, ledger.pending)\n        if not accept_loss:\n"
        "            settled.require_nothing_lost(self.sink)",
        SPARK_TESTS,
    ),
    Mutant(
        "transactions are committed before the decision",
        SPARK_COORDINATOR,
        "        record(decision)\n        decided = time.monotonic()\n        try:\n"
        "            settled = self._settle(joined.attempt, [decision])",
        "        decided = time.monotonic()\n        try:\n"
        "            settled = self._settle(joined.attempt, [decision])\n"
        "            record(decision)",
        SPARK_TESTS,
    ),
    Mutant(
        "the door is not shut before the house is swept",
        SPARK_LEDGER,
        "        return {HEAD: replace(head, is_closed=True)}",
        "        return {}",
        SPARK_TESTS,
    ),
    # The client
    Mutant(
        "prepared does not wait for the broker",
        "dualwrite/flows/transaction.py",
        "        yield from self._drain_cleanly()\n        if not self._is_started:\n"
        "            # An empty",
        "        if not self._is_started:\n            # An empty",
        ("tests/client/test_transaction_flows.py",),
    ),
    Mutant(
        "a transaction whose call was interrupted may be committed",
        "dualwrite/flows/transaction.py",
        "            self.states.fail(error, fatal=False)\n\n    @contextmanager",
        "            pass\n\n    @contextmanager",
        ("tests/client/test_transaction_flows.py",),
    ),
    Mutant(
        "a server need not know the password",
        "dualwrite/flows/scram.py",
        '        if not hmac.compare_digest(_decode(fields.get("v", "")), self._server_signature):',
        "        if False:",
        ("tests/client/test_link.py",),
    ),
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
