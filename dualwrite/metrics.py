"""What a process that writes to both sides reports, in `prometheus_client`'s default registry."""

from prometheus_client import Counter, Histogram

transactions = Counter(
    "dualwrite_transactions_total",
    "Dual writes by how they ended.",
    ["app", "outcome"],
)
window = Histogram(
    "dualwrite_open_window_seconds",
    "From the first record sent to the Kafka commit: for so long readers of the partitions wait.",
    ["app"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
recovered = Counter(
    "dualwrite_recovered_total",
    "In-doubt transactions that recovery ended.",
    ["app", "verdict"],
)
alarms = Counter(
    "dualwrite_alarms_total",
    "Findings that a person must look at.",
    ["app", "event"],
)
