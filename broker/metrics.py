"""What the broker tells Prometheus: KIP-98's and KIP-939's figures, the disk, the requests.

Gauges are read from the node when somebody asks, on the node's own thread; only what has no state to
be read from (how long an fsync took, how many requests came) is counted as it happens.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.disk import RealDisk, RealFile
from dualwrite.broker.topics import Topic
from dualwrite.broker.transactions.state import TxnState
from dualwrite.wire.api_keys import ApiKey

if TYPE_CHECKING:
    import os

    from dualwrite.broker.node import Node
    from dualwrite.broker.storage.log import Log

_FSYNC_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2)
_REQUEST_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30)


class Metrics:
    """The figures of one broker, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.fsync = Histogram(
            "dualwrite_fsync_seconds",
            "Duration of one fdatasync, journal and segments.",
            buckets=_FSYNC_BUCKETS,
            registry=self._registry,
        )
        self._requests = Histogram(
            "dualwrite_request_seconds",
            "From a request's arrival to its answer, waiting for durability and long polls included.",
            ["api"],
            buckets=_REQUEST_BUCKETS,
            registry=self._registry,
        )
        self.refused_logins = Counter(
            "dualwrite_refused_logins_total",
            "Connections that failed to prove who they are.",
            registry=self._registry,
        )
        self._by_api = {key: self._requests.labels(api=ApiKey(key).name) for key in ApiKey}

    def answered(self, key: int, duration_ms: int) -> None:
        """Count one answer."""
        self._by_api[ApiKey(key)].observe(duration_ms / 1000)

    def render(self, node: "Node", connections: int, now: Now) -> bytes:
        """The page that Prometheus scrapes. Must run on the node's thread."""
        state = CollectorRegistry()
        state.register(_State(node, connections, now))
        return generate_latest(self._registry) + generate_latest(state)


class _State:
    """Reads the node once; lives for one scrape."""

    def __init__(self, node: "Node", connections: int, now: Now) -> None:
        self._node = node
        self._connections = connections
        self._now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._transactions()
        yield from self._partitions()
        yield from self._groups()
        yield from self._storage()
        yield _gauge("dualwrite_connections", "Open connections.", self._connections)

    def _transactions(self) -> Iterator[Metric]:
        coordinator = self._node.transactions
        yield _gauge(
            "dualwrite_active_transactional_ids",
            "Ids that the coordinator knows.",
            len(coordinator),
        )
        yield _gauge(
            "dualwrite_active_transaction_open_time_max_seconds",
            "KIP-939: how long the oldest open transaction has been open.",
            coordinator.longest_open_ms(self._now) / 1000,
        )
        count = GaugeMetricFamily(
            "dualwrite_open_transactions", "Transactions without an outcome.", labels=["two_phase"]
        )
        seconds = GaugeMetricFamily(
            "dualwrite_in_doubt_seconds",
            "Ages of the open two-phase transactions, added up.",
        )
        numbers = {"true": 0, "false": 0}
        in_doubt_ms = 0
        for transaction in coordinator.open_transactions():
            if transaction.state is not TxnState.ONGOING:
                continue
            numbers["true" if transaction.is_two_phase else "false"] += 1
            if transaction.is_two_phase:
                in_doubt_ms += self._now.steady_ms - transaction.start_steady_ms
        for label, number in numbers.items():
            count.add_metric([label], number)
        seconds.add_metric([], in_doubt_ms / 1000)
        yield count
        yield seconds

    def _logs(self) -> Iterator[tuple[Topic, int, "Log"]]:
        """Partitions that hold something; empty ones of the internal topics would only be noise."""
        for topic in self._node.topics:
            for partition in range(topic.partitions):
                log = self._node.log_of(topic, partition)
                if log is not None and (log.end or not topic.is_internal):
                    yield topic, partition, log

    def _partitions(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        families = {
            "log_start_offset": "First offset.",
            "high_watermark": "End of what is durable.",
            "last_stable_offset": "End of what read_committed readers may see (LSO).",
            "lso_lag_records": "Offsets between the LSO and the high watermark.",
            "log_size_bytes": "Bytes of the partition.",
            "partition_offline": "1 if the partition holds damaged bytes and is not served.",
        }
        found = {
            name: GaugeMetricFamily(f"dualwrite_{name}", text, labels=labels)
            for name, text in families.items()
        }
        producers = 0
        for topic, partition, log in self._logs():
            values = [topic.name, str(partition)]
            producers += len(log.producers.producers)
            found["log_start_offset"].add_metric(values, log.log_start)
            found["high_watermark"].add_metric(values, log.high_watermark)
            found["last_stable_offset"].add_metric(values, log.last_stable)
            found["lso_lag_records"].add_metric(values, log.high_watermark - log.last_stable)
            found["log_size_bytes"].add_metric(values, log.size)
            found["partition_offline"].add_metric(values, 0 if log.offline is None else 1)
        yield from found.values()
        yield _gauge(
            "dualwrite_live_producer_ids", "Producers that some partition remembers.", producers
        )

    def _groups(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "dualwrite_group_lag_records",
            "Offsets between a group's commit and the LSO: what a read_committed group has to do.",
            labels=["group", "topic", "partition"],
        )
        for group, (topic, partition), offset in self._node.groups.committed_offsets():
            log = self._node.find_log(topic, partition)
            if log is not None:
                lag.add_metric([group, topic, str(partition)], max(0, log.last_stable - offset))
        yield lag

    def _storage(self) -> Iterator[Metric]:
        storage = self._node.storage
        yield _gauge("dualwrite_journal_entries", "Durable journal entries.", storage.durable)
        yield _gauge("dualwrite_disk_full", "1 while the disk has no room.", int(storage.is_full))
        yield _gauge("dualwrite_disk_free_bytes", "Room on the disk.", self._node.free_bytes())


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


class TimedFile(RealFile):
    """A file whose fdatasync is timed."""

    __slots__ = ("_histogram",)

    def __init__(self, fd: int, histogram: Histogram) -> None:
        super().__init__(fd)
        self._histogram = histogram

    def fdatasync(self) -> None:
        begin = time.perf_counter()
        super().fdatasync()
        self._histogram.observe(time.perf_counter() - begin)


class TimedDisk(RealDisk):
    """A data directory whose fsyncs are timed."""

    def __init__(self, path: "str | os.PathLike[str]", histogram: Histogram) -> None:
        super().__init__(path)
        self._histogram = histogram

    def open(self, path: str) -> RealFile:
        return self._timed(super().open(path))

    def create(self, path: str) -> RealFile:
        return self._timed(super().create(path))

    def _timed(self, file: RealFile) -> RealFile:
        return TimedFile(file.detach(), self._histogram)
