"""`dualwrite acl`: add, list and remove access rules, TWO_PHASE_COMMIT (KIP-939) among them."""

import enum
from typing import Annotated, Any

import typer

from dualwrite.cli.connecting import (
    AsJson,
    Bootstrap,
    CommandConfig,
    a_name,
    ask,
    check,
    misused,
    reached_config,
    show,
)

acls = typer.Typer(help="Add, list and remove access rules.", no_args_is_help=True)

ANY, LITERAL, PREFIXED = 1, 3, 4
DENY, ALLOW = 2, 3


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(acls, name="acl")


class OperationName(enum.StrEnum):
    """Operations as Kafka's tools write them; the order is that of their numbers, from 2."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    CREATE_TOKENS = "CreateTokens"
    DESCRIBE_TOKENS = "DescribeTokens"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"


OPERATIONS = {name: number for number, name in enumerate(OperationName, start=2)}
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
PATTERNS = {LITERAL: "literal", PREFIXED: "prefixed"}
PERMISSIONS = {DENY: "deny", ALLOW: "allow"}

Principal = Annotated[
    str | None,
    typer.Option(
        help="As in User:alice.", metavar="TYPE:NAME", show_default=False, callback=a_name
    ),
]
Operations = Annotated[
    list[OperationName] | None,
    typer.Option(
        "--operation",
        help=f"May be given more than once: {', '.join(OperationName)}.",
        case_sensitive=False,
        metavar="OPERATION",
    ),
]
Topic = Annotated[list[str] | None, typer.Option("--topic", help="A topic, or *.", callback=a_name)]
Group = Annotated[list[str] | None, typer.Option("--group", help="A group, or *.", callback=a_name)]
TransactionalId = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", help="A transactional id, or *.", callback=a_name),
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="Names are beginnings of names.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow.")]
Host = Annotated[str, typer.Option(help="From which address; * for all.", callback=a_name)]


def _resources(
    topic: list[str] | None, group: list[str] | None, ids: list[str] | None, cluster: bool
) -> list[tuple[int, str]]:
    named = [("topic", topic), ("group", group), ("transactional-id", ids)]
    found = [(RESOURCES[kind], name) for kind, names in named for name in names or ()]
    if cluster:
        found.append((RESOURCES["cluster"], "kafka-cluster"))
    return found


@acls.command()
def add(
    principal: Principal = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Put rules in force: one for each operation on each resource."""
    from dualwrite.wire.messages.create_acls import AclCreation, CreateAclsRequest

    resources = _resources(topic, group, transactional_id, cluster)
    if principal is None or not operation or not resources:
        misused("a rule needs --principal, --operation and a resource")
    creations = [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PREFIXED if prefixed else LITERAL,
            principal=principal,
            host=host,
            operation=OPERATIONS[wanted],
            permission_type=DENY if deny else ALLOW,
        )
        for kind, name in resources
        for wanted in operation
    ]
    config = reached_config(bootstrap_servers, command_config)
    (answer,) = ask(config, CreateAclsRequest(creations=creations))
    for result in answer.results:
        check(result.error_code, result.error_message)
    rows = [_row(c.resource_type, c.resource_name, c.resource_pattern_type, c) for c in creations]
    show(rows, json)


@acls.command("list")
def list_(
    principal: Principal = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """List the rules, of one principal or on some resources if told."""
    from dualwrite.wire.messages.describe_acls import DescribeAclsRequest

    asked: list[tuple[int, str | None]] = [
        *_resources(topic, group, transactional_id, cluster)
    ] or [(ANY, None)]
    requests = [
        DescribeAclsRequest(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=ANY,
            principal_filter=principal,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
        for kind, name in asked
    ]
    rows = []
    for answer in ask(reached_config(bootstrap_servers, command_config), *requests):
        check(answer.error_code, answer.error_message)
        rows += [
            _row(found.resource_type, found.resource_name, found.pattern_type, rule)
            for found in answer.resources
            for rule in found.acls
        ]
    show(rows, json)


@acls.command()
def remove(
    principal: Principal = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    prefixed: Prefixed = False,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Take rules out of force and show which; a principal or a resource must be named."""
    from dualwrite.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    resources: list[tuple[int, str | None]] = [*_resources(topic, group, transactional_id, cluster)]
    if principal is None and not resources:
        misused("name a --principal or a resource: all rules at once are never removed")
    numbers = [OPERATIONS[wanted] for wanted in operation or ()] or [ANY]
    filters = [
        DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=name,
            pattern_type_filter=PREFIXED if prefixed else LITERAL if resources else ANY,
            principal_filter=principal,
            host_filter=None,
            operation=number,
            permission_type=ANY,
        )
        for kind, name in resources or [(ANY, None)]
        for number in numbers
    ]
    config = reached_config(bootstrap_servers, command_config)
    (answer,) = ask(config, DeleteAclsRequest(filters=filters))
    rows = []
    for result in answer.filter_results:
        check(result.error_code, result.error_message)
        rows += [
            _row(rule.resource_type, rule.resource_name, rule.pattern_type, rule)
            for rule in result.matching_acls
        ]
    show(rows, json)


def _row(kind: int, name: str, pattern: int, rule: Any) -> dict[str, Any]:
    names = {number: text for text, number in RESOURCES.items()}
    operations = {number: str(text) for text, number in OPERATIONS.items()}
    return {
        "resource": names.get(kind, str(kind)),
        "name": name,
        "pattern": PATTERNS.get(pattern, str(pattern)),
        "principal": rule.principal,
        "host": rule.host,
        "operation": operations.get(rule.operation, str(rule.operation)),
        "permission": PERMISSIONS.get(rule.permission_type, str(rule.permission_type)),
    }
