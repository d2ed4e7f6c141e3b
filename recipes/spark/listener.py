"""`SinkListener`: Spark's progress of a query joined with what its sink has written down.

Spark tells of a Python sink only how many rows it got. The sink notes with every decision how long
its steps took and what it had to clean up; this listener publishes both to Prometheus.
"""

import logging
from typing import Any

from prometheus_client import REGISTRY as DEFAULT_REGISTRY
from prometheus_client import CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.options import SinkOptions, check_producer

STEPS = ("prepare_ms", "decide_ms", "complete_ms")

log = logging.getLogger("dualwrite.spark")


class SinkListener(StreamingQueryListener):
    """Publishes a sink's metrics: `spark.streams.addListener(SinkListener("orders", config))`."""

    def __init__(
        self,
        sink: str,
        config: dict[str, Any],
        decisions: Any = None,
        registry: CollectorRegistry = DEFAULT_REGISTRY,
    ) -> None:
        """`config` and `decisions` are those of the sink."""
        # Nothing is written here, so settings of either mode will do.
        self._engine = Engine(SinkOptions(sink=sink, kafka=check_producer(config, "resume")), "")
        self._home = decisions
        by = ("sink",)
        self._batch = Gauge("dualwrite_spark_batch", "Newest decided batch.", by, registry=registry)
        self._rows = Counter(
            "dualwrite_spark_rows", "Rows of decided batches.", by, registry=registry
        )
        self._steps = Gauge(
            "dualwrite_spark_step_seconds",
            "Duration of a step of the newest batch.",
            (*by, "step"),
            registry=registry,
        )
        self._retries = Counter(
            "dualwrite_spark_retries", "Slots found in use.", by, registry=registry
        )
        self._orphans = Counter(
            "dualwrite_spark_orphans",
            "Abandoned transactions that were aborted.",
            by,
            registry=registry,
        )
        self._in_doubt = Gauge(
            "dualwrite_spark_in_doubt",
            "Decided batches with transactions still open.",
            by,
            registry=registry,
        )
        self._last: dict[str, int] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        self.publish(f"query:{event.progress.id}")

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:
        self.publish(f"query:{event.id}")

    def publish(self, work: str) -> None:
        """Read the newest decision of a query and publish it; an error is only logged."""
        try:
            with self._engine.decisions(self._home) as decisions:
                ledger = decisions.read()
        except Exception as error:  # noqa: BLE001 - metrics must not trouble the query
            log.warning("metrics of sink %s were not read: %s", self._engine.options.sink, error)
            return
        sink = self._engine.options.sink
        self._in_doubt.labels(sink).set(len(ledger.pending))
        found = ledger.decisions.get(work)
        if found is None or found.batch == self._last.get(work):
            return
        self._last[work] = found.batch
        self._batch.labels(sink).set(found.batch)
        self._rows.labels(sink).inc(found.metrics.get("rows", 0))
        self._retries.labels(sink).inc(found.metrics.get("retries", 0))
        self._orphans.labels(sink).inc(found.metrics.get("orphans_aborted", 0))
        for step in STEPS:
            seconds = found.metrics.get(step, 0) / 1000
            self._steps.labels(sink, step.removesuffix("_ms")).set(seconds)
