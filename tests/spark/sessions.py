"""How the tests start Spark: small, quiet, and with the repository on the workers' path."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from dualwrite.recipes.spark.java import ensure_java

ROOT = Path(__file__).parents[2]


def start(master: str, scratch: Path, **more: str) -> SparkSession:
    ensure_java()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ).rstrip(os.pathsep)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(master)
        .appName("dualwrite-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.log.level", "ERROR")
    )
    for key, value in more.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()
