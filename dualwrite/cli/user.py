"""`dualwrite user`: add, list and remove SCRAM users. The broker never sees a password."""

import hashlib
import secrets
from collections.abc import Mapping
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
    refused,
    show,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", callback=a_name)]

users = typer.Typer(help="Add, list and remove SCRAM users.", no_args_is_help=True)

MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
ITERATIONS = 16_384
SALT_BYTES = 24


def attach(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(users, name="user")


Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; default: both."),
]


def _chosen(mechanisms: list[str] | None) -> list[str]:
    unknown = [name for name in mechanisms or () if name not in MECHANISMS]
    if unknown:
        misused(f"no such mechanism: {', '.join(unknown)}")
    return mechanisms or list(MECHANISMS)


@users.command()
def add(
    name: Name,
    mechanism: Mechanisms = None,
    password_file: Annotated[
        typer.FileText | None,
        typer.Option(help="Read the password from a file (- for standard input); else ask."),
    ] = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Add a user or give it a new password. It is asked for, never an argument that `ps` shows."""
    from dualwrite.broker.security.saslprep import Unpreparable, saslprep
    from dualwrite.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )

    chosen = _chosen(mechanism)
    if password_file is None:
        password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        try:
            password = password_file.read().rstrip("\n")
        except UnicodeDecodeError as error:
            misused(f"the password file can't be read: {error}")
    if not password:
        misused("the password is empty")
    try:
        prepared = saslprep(password).encode()
    except Unpreparable as error:
        misused(f"the password can't be used: {error}")
    upsertions = []
    for wanted in chosen:
        number, hash_name = MECHANISMS[wanted]
        salt = secrets.token_bytes(SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(hash_name, prepared, salt, ITERATIONS)
        upsertions.append(
            ScramCredentialUpsertion(
                name=name,
                mechanism=number,
                iterations=ITERATIONS,
                salt=salt,
                salted_password=salted,
            )
        )
    _alter(
        AlterUserScramCredentialsRequest(upsertions=upsertions),
        reached_config(bootstrap_servers, command_config),
    )
    show([{"user": name, "mechanism": wanted, "done": "set"} for wanted in chosen], json)


@users.command("list")
def list_(
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """List the users and their mechanisms."""
    from dualwrite.wire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
    )

    config = reached_config(bootstrap_servers, command_config)
    (answer,) = ask(config, DescribeUserScramCredentialsRequest(users=None))
    check(answer.error_code, answer.error_message)
    names = {number: text for text, (number, _) in MECHANISMS.items()}
    rows: list[dict[str, Any]] = [
        {
            "user": result.user,
            "mechanism": names.get(info.mechanism, str(info.mechanism)),
            "iterations": info.iterations,
        }
        for result in answer.results
        for info in result.credential_infos
    ]
    show(rows, json)


@users.command()
def remove(
    name: Name,
    mechanism: Mechanisms = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json: AsJson = False,
) -> None:
    """Remove a user's credentials; without --mechanism all that it has."""
    from dualwrite.wire.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
    )
    from dualwrite.wire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        UserName,
    )

    numbers = [MECHANISMS[wanted][0] for wanted in _chosen(mechanism)]
    config = reached_config(bootstrap_servers, command_config)
    if mechanism is None:
        (answer,) = ask(config, DescribeUserScramCredentialsRequest(users=[UserName(name=name)]))
        held = [info.mechanism for r in answer.results for info in r.credential_infos]
        if not held:
            refused(f"no user {name!r}")
        numbers = held
    deletions = [ScramCredentialDeletion(name=name, mechanism=number) for number in numbers]
    _alter(AlterUserScramCredentialsRequest(deletions=deletions), config)
    show([{"user": name, "done": "removed"}], json)


def _alter(request: Any, config: Mapping[str, Any]) -> None:
    (answer,) = ask(config, request)
    for result in answer.results:
        check(result.error_code, result.error_message)
