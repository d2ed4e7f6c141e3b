"""`dualwrite doctor`: is everything as exactly-once needs it?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from dualwrite.cli.connecting import (
    DONE,
    REFUSED,
    TABLE,
    AsJson,
    Bootstrap,
    CommandConfig,
    StoreUrl,
    TableName,
    bound_elsewhere,
    for_librdkafka,
    guarded,
    kafka_config,
    opened_store,
    reached,
    show,
)
from dualwrite.errors import DualWriteError

if TYPE_CHECKING:
    from dualwrite.admin import TransactionAdmin
    from dualwrite.store import DurabilityCheck, Store

INIT_PRODUCER_ID = 22


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    about: str
    result: str
    verdict: str
    """ok, warn or bad"""


def attach(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    store: StoreUrl = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    table: TableName = TABLE,
    json_: AsJson = False,
) -> None:
    """Check broker and store: features, open transactions, schema, durability. Changes nothing."""

    def command() -> int:
        config = kafka_config(bootstrap_servers, command_config)
        try:
            reached(config)
        except DualWriteError as error:
            checks, cluster = [Check("broker", str(error), "bad")], None
        else:
            checks, cluster = _guarded_checks("broker", lambda: _of_broker(config)), config
            checks += _guarded_checks("decisions", lambda: [*_of_decision_topics(config)])
        if store:
            checks += _guarded_checks("store", lambda: _of_store_at(store, table, cluster))
        else:
            checks.append(Check("store", "not given, not checked (--store URL)", "warn"))
        checks.append(
            Check(
                "readers",
                "must set isolation.level=read_committed; only librdkafka does so by itself",
                "warn",
            )
        )
        show([asdict(check) for check in checks], json_, title="doctor")
        return REFUSED if any(check.verdict == "bad" for check in checks) else DONE

    guarded(command)


def _guarded_checks(about: str, make: Callable[[], list[Check]]) -> list[Check]:
    """A part that cannot be reached is a finding, not the end of the examination."""
    try:
        return make()
    except DualWriteError as error:
        return [Check(about, str(error), "bad")]


def _of_broker(config: Mapping[str, Any]) -> list[Check]:
    from dualwrite import TransactionAdmin

    with TransactionAdmin(config) as admin:
        features = admin.features()
        checks = [Check("cluster id", admin.cluster_id() or "none", "ok")]
        is_v6 = features.offers(INIT_PRODUCER_ID, 6)
        version = features.transaction_version
        is_ready = is_v6 and version >= 2
        checks.append(
            Check(
                "two-phase commit (KIP-939)",
                f"InitProducerId v6: {'yes' if is_v6 else 'no'}, transaction.version {version}",
                "ok" if is_ready else "warn",
            )
        )
        if not is_ready:
            checks.append(Check("mode", "writers will use resume mode, bounded by timeout", "warn"))
        checks += _of_open_transactions(admin)
    return checks


def _of_open_transactions(admin: "TransactionAdmin") -> Iterator[Check]:
    listed = admin.list_transactions(["Ongoing"], min_duration_ms=60_000)
    if not listed:
        yield Check("transactions open for over a minute", "none", "ok")
    for entry in listed:
        yield Check("open for over a minute", entry.transactional_id, "warn")


def _of_decision_topics(config: Mapping[str, Any]) -> Iterator[Check]:
    """The topics of Spark's sinks; what is decided must not be deleted in them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from dualwrite.recipes.spark.names import DECISION_TOPICS
    from dualwrite.recipes.spark.topic_log import durability

    admin = AdminClient({"log_level": "0"} | for_librdkafka(config))
    try:
        topics = admin.list_topics(timeout=int(config["max.block.ms"]) / 1000).topics
    except KafkaException as error:
        raise DualWriteError(error.args[0].str()) from error
    for topic in sorted(topics):
        if topic.startswith(DECISION_TOPICS):
            yield _judged("decisions", durability(admin, topic, config))


def _of_store_at(url: str, table: str, config: Mapping[str, Any] | None) -> list[Check]:
    """What the store says of itself, and what its rows are worth if a cluster can be asked."""
    with opened_store(url, table) as opened:
        checks = [*_of_schema(opened), *_of_durability(opened)]
        return checks if config is None else [*checks, *_of_rows(opened, config)]


def _of_schema(store: "Store") -> Iterator[Check]:
    differences = getattr(store, "schema_differences", None)
    if differences is None:
        return
    found = differences()
    if not found:
        yield Check("schema", "complete", "ok")
    for difference in found:
        yield Check("schema", difference, "bad")


def _of_durability(store: "Store") -> Iterator[Check]:
    for check in store.durability().checks:
        yield _judged("durability", check)


def _judged(about: str, check: "DurabilityCheck") -> Check:
    from dualwrite.store import Verdict

    bad = "warn" if check.is_accepted else "bad"
    verdict = {Verdict.UNSAFE: bad, Verdict.UNKNOWN: "warn"}.get(check.verdict, "ok")
    told = f"{check.value} ({check.verdict.value}, wanted {check.wanted})"
    return Check(f"{about}: {check.name}", told, verdict)


def _of_rows(store: "Store", config: Mapping[str, Any]) -> Iterator[Check]:
    from dualwrite import TransactionAdmin
    from dualwrite.operations import look_at_all

    rows = store.rows()
    with TransactionAdmin(config) as admin:
        explanations = look_at_all(rows, admin)
        cluster = admin.cluster_id()
    yield Check("slots", f"{len(rows)} rows", "ok")
    for difference in bound_elsewhere(rows, cluster):
        yield Check("slots", difference, "bad")
    for name, explanation in explanations.items():
        if explanation.advice in ("commit", "abort"):
            yield Check(name, f"in doubt, recovery would {explanation.advice}", "warn")
        if explanation.advice == "look":
            yield Check(name, "; ".join(explanation.reasons), "bad")
    for entry in store.heuristics():
        told = f"{entry.action} of {entry.state} by {entry.recorded_by}: {entry.reason}"
        yield Check(f"forced end of {entry.transactional_id}", told, "warn")
