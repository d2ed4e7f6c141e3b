"""Planted bugs of dual writes, their recovery, Spark's sink and the client."""

from tests.mutation.mutant import Mutant

WRITE_PATH = "dualwrite/write_path.py"
RESUME = "dualwrite/resume.py"
UPKEEP = "dualwrite/upkeep.py"
SPARK_LEDGER = "recipes/spark/ledger.py"
SPARK_COORDINATOR = "recipes/spark/coordinator.py"

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
SPARK_CRASHES = "tests/spark/test_crashes.py"
SPARK_CAMPAIGN = (SPARK_CRASHES, "-k", "test_every_row_arrives_once_whatever_fails")
SPARK_TABLE_CAMPAIGN = (SPARK_CRASHES, "-k", "rows_and_records_of_one_decision")

MUTANTS = (
    # The order of a dual write
    Mutant(
        "an unknown COMMIT is aborted in Kafka",
        WRITE_PATH,
        "        if slot.claim.state == unit.state:\n",
        "        if False:\n",
        DUAL_WRITE_TESTS,
    ),
    Mutant(
        "Kafka is asked to commit before the database has",
        WRITE_PATH,
        '            with unit.trace.part("decide"):\n                yield from call(unit.local.commit)\n',
        "            yield from self._mode.start_commit(unit.slot)\n"
        '            with unit.trace.part("decide"):\n                yield from call(unit.local.commit)\n',
        ("tests/crash/test_matrix.py", "-k", "to_sql and C9a and client"),
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
        "        yield from unit.slot.under_fence(self._mode.remember(unit))\n",
        "        yield from ()\n",
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
        "            yield from slot.under_fence(self.remember(unit))\n",
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
        "        if found is not Fate.ABORTED:\n",
        "        if found is Fate.COMMITTED:\n",
        RESUME_TESTS,
    ),
    Mutant(
        "what was ended by force is sent again",
        RESUME,
        "        return kept, not written\n",
        "        return kept, True\n",
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
        "        yield from self._take_over(passing=released)\n",
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
        "a process of another container is taken for a dead one of ours",
        "dualwrite/owner.py",
        "        if (owner.host, owner.place) != (self.host, self.place):",
        "        if owner.host != self.host:",
        ("tests/adapters/test_slot_ids.py",),
    ),
    Mutant(
        "a refused slot keeps the others from recovery",
        UPKEEP,
        "                refusals.append(refusal)\n",
        "                raise refusal\n",
        ("tests/dualwrite/test_recovery.py", "-k", "refused"),
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
    Mutant(
        "a change of Spark's ledger does not fence the one before it",
        "recipes/spark/topic_log.py",
        "            producer.init_transactions()\n            ledger = self.read()",
        "            ledger = self.read()\n            producer.init_transactions()",
        ("tests/spark/test_decision_logs.py", "-k", "made_anew"),
    ),
    Mutant(
        "a change of Spark's ledger in ZooKeeper overwrites another",
        "recipes/spark/zookeeper_log.py",
        "                request.set_data(self._node(name), encode(entry), versions[name])",
        "                request.set_data(self._node(name), encode(entry))",
        ("tests/spark/test_decision_logs.py", "-k", "made_anew"),
    ),
    Mutant(
        "an unfinished decision is replaced by the next",
        SPARK_LEDGER,
        "        if found is not None and not found.is_done:\n            raise",
        "        if False:\n            raise",
        ("tests/spark/test_decision_logs.py", "-k", "unfinished"),
    ),
    Mutant(
        "a takeover of Spark's sink does not wait for a decision",
        "recipes/spark/sql_log.py",
        "        self._store.remember(local.handle, name, PreparedTxnState.NONE, fence)\n",
        "",
        ("tests/spark/test_decision_logs.py", "-k", "takeover_waits"),
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
    # What Spark's crash campaigns find by themselves, with real processes
    Mutant(
        "a task of Spark commits before the decision",
        "recipes/spark/transactions.py",
        "        return Participant(self._id, state, self._producer.transaction_version)\n",
        "        self._producer.commit_transaction()\n"
        "        return Participant(self._id, state, self._producer.transaction_version)\n",
        SPARK_CAMPAIGN,
    ),
    Mutant(
        "what a dead driver of Spark has decided is aborted by the next",
        SPARK_COORDINATOR,
        "opening(self._token, nonce, before_first))\n"
        "        settled = self._settle(nonce, ledger.pending)",
        "opening(self._token, nonce, before_first))\n        settled = self._settle(nonce, [])",
        SPARK_CAMPAIGN,
    ),
    Mutant(
        "the rows of a batch of Spark are committed before its decision",
        "recipes/spark/foreach_batch.py",
        "                    transaction.update(deciding(decision))\n",
        "                self._decisions.update(deciding(decision))\n",
        SPARK_TABLE_CAMPAIGN,
    ),
    # What only a kill shows
    Mutant(
        "a COMMIT that the database lost is taken for one that happened",
        WRITE_PATH,
        "        if slot.claim.state == unit.state:\n",
        "        if True:\n",
        ("tests/crash/test_databases.py", "-k", "of_the_database and C9a-database"),
    ),
    Mutant(
        "a writer in an event loop does not wait for its COMMIT",
        "adapters/awaitable.py",
        "        await self._run(self._transaction.commit)\n",
        "        asyncio.ensure_future(self._run(self._transaction.commit))\n",
        ("tests/crash/test_async_writer.py", "-k", "async_client and C9a"),
    ),
    Mutant(
        "the copy goes before it is sent again",
        RESUME,
        "            yield from self._send_again(slot, kept)\n",
        "            yield from call(around.store.forget_messages, slot.transactional_id, state)\n"
        "            yield from self._send_again(slot, kept)\n",
        ("tests/crash/test_resume_mode.py", "-k", "while_messages_are_sent_again and C5"),
    ),
    Mutant(
        "positions are committed behind the data",
        "recipes/consume_to_db.py",
        "                for place, offset in positions.items():\n",
        "            with Session(self._engine) as session, session.begin():\n"
        "                for place, offset in positions.items():\n",
        ("tests/recipes/test_kills.py", "-k", "database and not many"),
    ),
    Mutant(
        "consumed offsets are committed behind the transaction",
        "recipes/consume_transform_produce.py",
        "            tx.send_offsets(next_offsets(messages), consumer.consumer_group_metadata())\n",
        "        offsets = [TopicPartition(*p, n) for p, n in next_offsets(messages).items()]\n"
        "        with contextlib.suppress(KafkaException):\n"
        "            consumer.commit(offsets=offsets, asynchronous=False)\n",
        ("tests/recipes/test_kills.py", "-k", "transform and not many"),
    ),
    Mutant(
        "a message counts as seen before it was acted upon",
        "recipes/idempotent_consumer.py",
        "        result: Any = session.connection().execute(statement, execution_options=options)\n",
        "        with session.get_bind().begin() as own:\n"
        "            result: Any = own.execute(statement, execution_options=options)\n",
        ("tests/recipes/test_kills.py", "-k", "idempotent and not many"),
    ),
    Mutant(
        "an idle slot that a peer took counts as ours",
        "dualwrite/slot_pool.py",
        "                if slot is not None and is_idle and row.fence > slot.fence:\n",
        "                if False:\n",
        ("tests/dualwrite/test_recovery.py", "-k", "died_with and not postgresql"),
    ),
)
