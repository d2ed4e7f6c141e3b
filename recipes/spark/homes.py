"""Which home a ledger has, from what the user gave as `decisions`."""

from collections.abc import Mapping
from typing import Any

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.decision_log import DecisionLog


def open_log(
    home: Any, config: Mapping[str, Any], sink: str, start_seconds: float | None = None
) -> DecisionLog:
    """Open the ledger in a store, at a store's URL, or (None) in the sink's own topic.

    `start_seconds` is how long a ZooKeeper at a URL is waited for.
    """
    if home is None:
        from dualwrite.recipes.spark.topic_log import TopicDecisionLog

        return TopicDecisionLog(config, sink)
    if isinstance(home, str):
        return _at_url(home, sink, start_seconds)
    if _is_a("SqlStore", home):
        from dualwrite.recipes.spark.sql_log import SqlDecisionLog

        return SqlDecisionLog(home, sink)
    if _is_a("ZooKeeperStore", home):
        from dualwrite.recipes.spark.zookeeper_log import ZooKeeperLog

        return ZooKeeperLog(home.client, sink)
    raise ConfigurationError(
        "decisions must be an SqlStore, a ZooKeeperStore, the URL of one, or None for a topic;"
        f" not {type(home).__name__}"
    )


def holds_data(home: Any) -> bool:
    """True if a batch can write its rows where its decision is written, in one transaction."""
    if isinstance(home, str):
        return not home.startswith("zookeeper:")
    return _is_a("SqlStore", home)


def _is_a(name: str, home: Any) -> bool:
    # By name, so that nobody needs the packages of a store that is not used.
    return name in {cls.__name__ for cls in type(home).__mro__}


def _at_url(url: str, sink: str, start_seconds: float | None) -> DecisionLog:
    scheme = url.split(":", 1)[0]
    if scheme == "zookeeper":
        from dualwrite.recipes.spark.zookeeper_log import ZooKeeperLog

        return ZooKeeperLog.at(url, sink, start_seconds)
    if "://" not in url or scheme in ("file", "hdfs", "s3", "s3a", "gs", "abfs", "abfss"):
        raise ConfigurationError(
            f"dualwrite.decisions={url!r} is not a database: name one by its SQLAlchemy URL, or"
            " zookeeper://host:port/root, or leave the option out to use a topic"
        )
    from dualwrite.adapters.opening import open_sql_store
    from dualwrite.recipes.spark.sql_log import SqlDecisionLog

    store = open_sql_store(url)
    store.create_tables()
    return SqlDecisionLog(store, sink, owns_store=True)
