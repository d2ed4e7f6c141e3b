"""`dualwrite topic`: create, list, describe and delete topics of any Kafka cluster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dualwrite.cli.connecting import (
    AsJson,
    Bootstrap,
    CommandConfig,
    a_name,
    for_librdkafka,
    misused,
    reached_config,
    refused,
    show,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS: Final = 30.0

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", callback=a_name)]
Internal = Annotated[bool, typer.Option("--internal", help="Also the brokers' own.")]

topics = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(topics, name="topic")


@topics.command()
def create(
    name: Name,
    bootstrap_servers: Bootstrap = None,
    partitions: Annotated[
        int, typer.Option(help="How many; -1: the broker's default.", min=-1, max=2**31 - 1)
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(help="Copies of each; -1: the broker's default.", min=-1, max=2**15 - 1)
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(help="A setting; may be given more than once.", metavar="KEY=VALUE"),
    ] = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    settings: dict[str, str] = {}
    for pair in config or ():
        key, sign, value = pair.partition("=")
        if not sign:
            misused(f"not key=value: {pair}")
        settings[key] = value
    wanted = NewTopic(name, partitions, replication_factor, config=settings)
    admin = _admin(reached_config(bootstrap_servers, command_config))
    _wait(admin.create_topics([wanted])[name])
    show([{"topic": name, "done": "created"}], json)


@topics.command("list")
def list_(
    bootstrap_servers: Bootstrap = None,
    internal: Internal = False,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """List the topics."""
    admin = _admin(reached_config(bootstrap_servers, command_config))
    found = _metadata(admin)
    rows = [
        {"topic": name, "partitions": len(topic.partitions)}
        for name, topic in sorted(found.items())
        if internal or not name.startswith("__")
    ]
    show(rows, json)


@topics.command()
def describe(
    name: Name,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Show a topic's partitions with the offsets that readers can reach."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = _admin(reached_config(bootstrap_servers, command_config))
    # All topics are asked for: a question about one by its name would create it.
    topic = _metadata(admin).get(name)
    if topic is None or topic.error is not None:
        refused(f"no topic {name!r}" if topic is None else topic.error.str())
    indexes = sorted(topic.partitions)

    def offsets(spec: Any, level: Any) -> dict[int, int]:
        asked = {TopicPartition(name, index): spec for index in indexes}
        futures = admin.list_offsets(asked, isolation_level=level)
        return {p.partition: _wait(future).offset for p, future in futures.items()}

    start = offsets(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
    end = offsets(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
    stable = offsets(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    rows = [
        {
            "partition": index,
            "leader": topic.partitions[index].leader,
            "start": start[index],
            "stable": stable[index],
            "end": end[index],
        }
        for index in indexes
    ]
    show(rows, json)


@topics.command()
def delete(
    name: Name,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Delete a topic with everything in it."""
    admin = _admin(reached_config(bootstrap_servers, command_config))
    _wait(admin.delete_topics([name])[name])
    show([{"topic": name, "done": "deleted"}], json)


def _admin(config: Mapping[str, Any]) -> "AdminClient":
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        # The answers say what is wrong; librdkafka's own lines on stderr would only repeat it.
        return AdminClient({"log_level": "0"} | for_librdkafka(config))
    except KafkaException as error:
        misused(error.args[0].str())


def _metadata(admin: "AdminClient") -> dict[str, Any]:
    from confluent_kafka import KafkaException

    try:
        found: dict[str, Any] = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        refused(error.args[0].str())
    return found


def _wait(future: Any) -> Any:
    from confluent_kafka import KafkaException

    try:
        return future.result(TIMEOUT_SECONDS)
    except KafkaException as error:
        refused(error.args[0].str())
    except TimeoutError:
        refused(f"no answer within {TIMEOUT_SECONDS:g} s; it may still happen")
