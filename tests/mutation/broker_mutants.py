"""Planted bugs of the broker."""

from tests.mutation.mutant import Mutant

COORDINATOR = "broker/transactions/coordinator.py"
TRANSITIONS = "broker/transactions/transitions.py"
RECOVERY = "broker/storage/recovery.py"
JOURNAL_READER = "broker/storage/journal_reader.py"
AUTHORIZER = "broker/security/authorizer.py"
PRODUCERS = "broker/producers/states.py"
GROUP_OFFSETS = "broker/groups/offsets.py"
SCRAM = "broker/security/scram.py"

TRANSACTION_TESTS = ("tests/transactions",)
STORAGE_TESTS = ("tests/storage/test_damage.py", "tests/storage/test_crash.py")
AUTHORIZER_TESTS = ("tests/security/test_authorizer.py",)
LOGIN_TESTS = ("tests/security/test_scram.py", "tests/security/test_sasl.py")
SERVER_TESTS = ("tests/broker/test_server.py",)
GROUP_TESTS = ("tests/groups/test_offsets.py", "tests/groups/test_versions.py")
# Four client libraries and a checker that know nothing of how the broker is made.
WORKLOAD_TESTS = ("tests/history/test_workloads.py", "-k", "whatever_fails and append")

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
    # Memory that serves again
    Mutant(
        "a slab serves again while somebody reads it",
        "broker/receiving.py",
        "    except BufferError:\n        return False\n",
        "    except BufferError:\n        pass\n",
        ("tests/broker/test_receiving.py",),
    ),
    # Connections
    Mutant(
        "requests are held without a limit",
        "broker/server.py",
        "            return True\n        if self._favoured is None:",
        "            return True\n        return True\n        if self._favoured is None:",
        SERVER_TESTS,
    ),
    Mutant(
        "nobody gets to the end of a frame when too much is held",
        "broker/server.py",
        "        if connection is self._favoured:\n            return True\n",
        "",
        SERVER_TESTS,
    ),
    # Retention
    Mutant(
        "a restart makes a jumped clock believed",
        RECOVERY,
        "ClockGuard(checkpoint.now, checkpoint.distrusted_at)",
        "ClockGuard(checkpoint.now)",
        ("tests/storage/test_retention.py",),
    ),
    Mutant(
        "a jump that only the journal knows is believed",
        "broker/storage/storage.py",
        "        self._now = now\n        self._clock_guard.see(now)\n",
        "        self._now = now\n        self._clock_guard._last = now\n",
        ("tests/storage/test_retention.py",),
    ),
    Mutant(
        "a jump before a checkpoint is believed",
        "broker/storage/storage.py",
        "        self._clock_guard.see(self._now)\n",
        "",
        ("tests/storage/test_retention.py",),
    ),
    # What clients see of the whole
    Mutant(
        "clients read what was aborted",
        "broker/handlers/fetch.py",
        "if entry.first_offset <= end",
        "if entry.first_offset < 0",
        WORKLOAD_TESTS,
    ),
    Mutant(
        "clients find what they sent again twice",
        PRODUCERS,
        "                return duplicate\n        starts = False\n",
        "                return ACCEPT\n        starts = False\n",
        WORKLOAD_TESTS,
    ),
    Mutant(
        "clients lose what was acknowledged out of the memory of a killed broker",
        "broker/storage/journal.py",
        "        file.writev(buffers, offset)\n        sync(file, slot_path(slot.name))\n",
        "        late = self.__dict__.setdefault('_late', [])\n"
        "        late.append((file, [bytes(part) for part in buffers], offset))\n"
        "        if len(late) == 20:\n"
        "            for one, parts, place in late:\n"
        "                one.writev(parts, place)\n"
        "            late.clear()\n",
        WORKLOAD_TESTS,
    ),
    Mutant(
        "what earlier lives have left waits for no checkpoint",
        "broker/storage/storage.py",
        "        self._checkpointed_bytes = journal.bytes_written - replayed\n",
        "        self._checkpointed_bytes = journal.bytes_written\n",
        ("tests/storage/test_crash_loops.py",),
    ),
)
