"""The Kafka source: reads committed records between offsets that are planned on the driver.

The end of a batch is the last stable offset, never the high watermark: behind it an undecided
transaction may be open for as long as its owner likes, and a task would wait for it.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientsError
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.recipes.spark.offsets import (
    BEGAN,
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    Partition,
    clamp,
    from_json,
    lag,
    limit_rows,
    losses,
    ranges,
    require_all,
    split,
    to_json,
)
from dualwrite.recipes.spark.patience import passes, patiently
from dualwrite.recipes.spark.source_options import Bound, SourceOptions, parse_source

CHUNK = 10_000

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint,"
    " timestamp timestamp, timestampType int"
)
_HEADERS = ", headers array<struct<key:string,value:binary>>"


def source_schema(options: Mapping[str, str]) -> str:
    """Columns of Spark's own Kafka source, as DDL: this runs where there is no session."""
    return _columns(str(options.get("includeheaders", "false")).lower() == "true")


def _columns(has_headers: bool) -> str:
    return _COLUMNS + (_HEADERS if has_headers else "")


def check_columns(schema: StructType, has_headers: bool) -> None:
    """Refuse a schema of the user's own: what is in key and value is for DataFrame functions."""
    given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    if given != _columns(has_headers):
        raise ConfigurationError(
            f"the source has its own columns, {_columns(has_headers)}: leave out .schema(), which"
            f" says {given}, and take value apart with DataFrame functions such as from_json"
        )


class Cluster:
    """What the planner asks Kafka: which partitions there are, and where they begin and end."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        # A topic that is not there must be an error, not made by asking for it.
        config = {**_client(options), "allow.auto.create.topics": False}
        config.pop("isolation.level", None)
        try:
            self._admin = AdminClient(config)
        except KafkaException as error:
            raise ConfigurationError(f"kafka.*: {error.args[0].str()}") from error
        committed = options.kafka.get("isolation.level", "read_committed") == "read_committed"
        self._isolation = (
            IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        )

    def partitions(self) -> list[Partition]:
        found = patiently(
            lambda seconds: self._admin.list_topics(timeout=seconds), self._options.kafka
        ).topics
        there = {name: sorted(t.partitions) for name, t in found.items() if t.error is None}
        if self._options.assigned:
            missing = [p for p in self._options.assigned if p[1] not in there.get(p[0], ())]
            if missing:
                raise ConfigurationError(f"assign: there is no partition {missing}")
            return list(self._options.assigned)
        if self._options.pattern is not None:
            pattern = re.compile(self._options.pattern)
            names = [n for n in there if pattern.fullmatch(n) and not n.startswith("__")]
        else:
            names = list(self._options.topics)
            absent = [name for name in names if name not in there]
            if absent:
                raise ConfigurationError(f"subscribe: there is no topic {', '.join(absent)}")
        return [(name, number) for name in sorted(names) for number in there[name]]

    def earliest(self, partitions: Sequence[Partition]) -> Offsets:
        return self._ask(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, partitions: Sequence[Partition]) -> Offsets:
        return self._ask(dict.fromkeys(partitions, OffsetSpec.latest()))

    def at_times(self, times: Mapping[Partition, int]) -> Offsets:
        """The first offset at or after a time; -1 where there is none."""
        return self._ask({p: OffsetSpec.for_timestamp(time_) for p, time_ in times.items()})

    def _ask(self, wanted: Mapping[Partition, Any]) -> Offsets:
        if not wanted:
            return {}

        def ask(seconds: float) -> Offsets:
            asked = self._admin.list_offsets(
                {TopicPartition(*p): spec for p, spec in wanted.items()},
                isolation_level=self._isolation,
                request_timeout=seconds,
            )
            return {(p.topic, p.partition): int(f.result().offset) for p, f in asked.items()}

        return patiently(ask, self._options.kafka)


class Planner:
    """Turns options into offsets."""

    def __init__(self, options: SourceOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def start(self, partitions: Sequence[Partition]) -> Offsets:
        times = self._options.starting_times
        if times is not None:
            return self._by_time("startingOffsetsByTimestamp", times, partitions, must_exist=True)
        return self._bound("startingOffsets", self._options.starting, partitions)

    def end(self, partitions: Sequence[Partition]) -> Offsets:
        times = self._options.ending_times
        if times is not None:
            return self._by_time("endingOffsetsByTimestamp", times, partitions, must_exist=False)
        return self._bound("endingOffsets", self._options.ending, partitions)

    def between(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Ranges to read; what the log has lost is an error, or left out if that is accepted."""
        earliest = self._cluster.earliest(list(end))
        new = {p: earliest[p] for p in end if p not in start}
        lost = losses({**start, **new}, end, earliest)
        if lost and self._options.fails_on_loss:
            raise DualWriteError(
                f"data was lost: {'; '.join(lost)}. To go on with what there is, set failOnDataLoss"
                " to false"
            )
        begin = clamp({**start, **new}, end, earliest)
        return split(ranges(begin, end), self._options.partitions_min)

    def _bound(self, option: str, bound: Bound, partitions: Sequence[Partition]) -> Offsets:
        if bound == "earliest":
            return self._cluster.earliest(partitions)
        if bound == "latest":
            return self._cluster.latest(partitions)
        assert isinstance(bound, dict)
        require_all(option, bound, partitions)
        earliest = self._cluster.earliest([p for p, o in bound.items() if o == EARLIEST])
        latest = self._cluster.latest([p for p, o in bound.items() if o == LATEST])
        return {**bound, **earliest, **latest}

    def _by_time(
        self,
        option: str,
        times: int | Offsets,
        partitions: Sequence[Partition],
        *,
        must_exist: bool,
    ) -> Offsets:
        wanted = dict.fromkeys(partitions, times) if isinstance(times, int) else times
        require_all(option, wanted, partitions)
        found = self._cluster.at_times(wanted)
        none_after = [p for p, offset in found.items() if offset < 0]
        if none_after and must_exist and not self._options.later_is_latest:
            raise DualWriteError(
                f"{option}: no record at or after the given time in {sorted(none_after)}; set"
                " startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        return {**found, **self._cluster.latest(none_after)}


class RangePartition(InputPartition):
    """One task's share."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)


class KafkaBatchReader(DataSourceReader):
    """`spark.read.format("dualwrite")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_source(options, is_streaming=False)
        check_columns(schema, self._options.has_headers)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        cluster = Cluster(self._options)
        planner = Planner(self._options, cluster)
        found = cluster.partitions()
        wanted = planner.between(planner.start(found), planner.end(found))
        return [RangePartition(one) for one in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own when there is nothing to read.
        if partition.value is None:
            return iter(())
        return read_range(partition.value, self._options, self._schema)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("dualwrite")`; lives in one process as long as the query runs."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = parse_source(options, is_streaming=True)
        check_columns(schema, self._options.has_headers)
        self._schema = schema
        self._now = now
        self._triggered_at = now()
        self._began: Offsets | None = None
        self._target: Offsets | None = None
        self._made: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._made is None:
            self._made = Cluster(self._options)
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        # The reader is also sent to the tasks, which need no connection of the planner's.
        return {**self.__dict__, "_made": None, "_now": time.monotonic}

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice before the first batch, and again if it runs that batch again.
        if self._began is None:
            planner = Planner(self._options, self._cluster)
            self._began = planner.start(self._cluster.partitions())
            if self._target is not None:
                self.prepareForTriggerAvailableNow()  # the end must not lie before the beginning
        return dict(to_json(self._began))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is None and self._options.rows_min is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.rows_max or 2**62)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._cluster.latest(self._cluster.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        began = from_json(start)
        end = self._target
        if end is None:
            end = self._cluster.latest(self._cluster.partitions())
        # A partition that the log has cut back or lost shows in `partitions`, not here.
        end = {**{p: o for p, o in began.items() if p in end}, **end}
        if isinstance(limit, ReadAllAvailable):
            return self._reached(start, end)
        if self._waits_for_more(began, end):
            return self._reached(start, began)
        begin = {**self._cluster.earliest([p for p in end if p not in began]), **began}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**62
        return self._reached(start, limit_rows(begin, end, rows_max))

    def _reached(self, start: dict[str, Any], end: Offsets) -> dict[str, Any]:
        """Write an end down, and in the end of the first batch where that began.

        Spark keeps a batch's end before it runs the batch, but not where the first one began. Run
        again after a crash it would begin at what is the latest offset by then.
        """
        began = from_json(start)
        if began == self._began and BEGAN not in start:
            return {**to_json(end), BEGAN: to_json(began)}
        return start if end == began else dict(to_json(end))

    def _waits_for_more(self, start: Offsets, end: Offsets) -> bool:
        if self._options.rows_min is None or self._target is not None:
            return False
        is_late = self._now() - self._triggered_at >= self._options.delay_seconds_max
        if lag(start, end) < self._options.rows_min and not is_late:
            return True
        self._triggered_at = self._now()
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return dict(to_json(self._cluster.latest(self._cluster.partitions())))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planner = Planner(self._options, self._cluster)
        began = start if BEGAN in start else end.get(BEGAN, start)
        wanted = planner.between(from_json(began), from_json(end))
        return [RangePartition(one) for one in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return iter(())
        return read_range(partition.value, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is the truth."""

    def stop(self) -> None:
        self._made = None


def read_range(
    wanted: OffsetRange, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Read the records of one range; aborted and control records leave gaps in the offsets."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    consumer = Consumer(
        {
            "isolation.level": "read_committed",
            "group.id": f"{options.group_prefix}-{uuid.uuid4()}",
            **_client(options),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error" if options.fails_on_loss else "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        for messages in _chunks(consumer, wanted, options.poll_seconds):
            yield _to_arrow(messages, arrow, options.has_headers)
    finally:
        consumer.close()


def _chunks(consumer: Consumer, wanted: OffsetRange, patience: float) -> Iterator[list[Message]]:
    position, deadline = wanted.start, time.monotonic() + patience
    while position < wanted.end:
        # Asking for more than there is would make the client wait for its whole timeout.
        found = consumer.consume(min(CHUNK, wanted.end - position), timeout=1.0)
        if not found and time.monotonic() > deadline:
            raise DualWriteError(
                f"no data from {wanted.topic}-{wanted.partition} at {position} in {patience:.0f} s"
            )
        records = []
        for message in found:
            error = message.error()
            if error is None:
                position = message.offset() + 1
                if message.offset() < wanted.end:
                    records.append(message)
            elif error.code() == ClientsError._PARTITION_EOF:
                position = max(position, message.offset())
            elif not passes(error):
                raise KafkaException(error)
        if found:
            deadline = time.monotonic() + patience
        if records:
            yield records


def _to_arrow(messages: Sequence[Message], schema: Any, has_headers: bool) -> pa.RecordBatch:
    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [millis * 1000 for _, millis in stamps],
        # Java counts create time as 0 and append time as 1, librdkafka as 1 and 2.
        [kind - 1 for kind, _ in stamps],
    ]
    if has_headers:
        columns.append(
            [
                None if m.headers() is None else [{"key": k, "value": v} for k, v in m.headers()]
                for m in messages
            ]
        )
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _client(options: SourceOptions) -> dict[str, Any]:
    """The user's settings, under librdkafka's names; `max.block.ms` is for `patiently` alone."""
    named = {"request.timeout.ms": "socket.timeout.ms"}
    return {
        named.get(key, key): value for key, value in options.kafka.items() if key != "max.block.ms"
    }
