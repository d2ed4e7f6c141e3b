"""`dualwrite recover`: end what dead instances of an app have left in doubt."""

from typing import Annotated

import typer

from dualwrite.cli.connecting import (
    DONE,
    TABLE,
    AsJson,
    Bootstrap,
    CommandConfig,
    StoreUrl,
    TableName,
    guarded,
    kafka_config,
    opened_store,
    reached,
    show,
)


def attach(app: typer.Typer) -> None:
    app.command("recover")(recover)


def recover(
    app: Annotated[str, typer.Option(help="Name of the app, as its writer has it.")],
    store: StoreUrl = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    table: TableName = TABLE,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Accept another cluster, or a restored database.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Commit or abort, as the store says, whatever dead instances left open; live ones are left."""

    def command() -> int:
        from dualwrite import recovery
        from dualwrite.errors import ConfigurationError
        from dualwrite.slot_ids import check_app

        try:
            check_app(app)
        except ConfigurationError as error:
            raise typer.BadParameter(f"--app: {error}") from None
        config = kafka_config(bootstrap_servers, command_config)
        with opened_store(store, table) as opened:
            ended = recovery.recover(reached(config), store=opened, app=app, adopt=adopt)
            if not opened.rows(app):
                typer.echo(f"the store has no rows of an app {app}", err=True)
        rows = [
            {"transactional_id": e.transactional_id, "txn": str(e.pair), "ended_by": e.verdict}
            for e in ended
        ]
        show(rows, json_, title="ended")
        return DONE

    guarded(command)
