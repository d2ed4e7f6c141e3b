"""The console: transactions, topics and groups in a browser, and the database's verdict beside them.

It is a client of the Kafka protocol like any other, so it works with every cluster that answers
ListTransactions; nothing here knows the bundled broker. Needs the extra `[console]`.
"""

try:
    from dualwrite.recipes.console.access import Access, read_or_create_token
    from dualwrite.recipes.console.app import create_app
    from dualwrite.recipes.console.server import ConsoleServer
except ModuleNotFoundError as error:
    missing = f"the console needs the extra: pip install 'dualwrite[console]' ({error})"
    raise ModuleNotFoundError(missing, name=error.name) from error

__all__ = ["Access", "ConsoleServer", "create_app", "read_or_create_token"]
