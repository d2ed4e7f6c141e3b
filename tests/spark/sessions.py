"""How the tests start Spark: small, quiet, and with the repository on the workers' path."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from dualwrite.recipes.spark.java import ensure_java
from tests.spark.faults import FOLDER

ROOT = Path(__file__).parents[2]


def start(master: str, scratch: Path) -> SparkSession:
    ensure_java()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ).rstrip(os.pathsep)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
        .config("spark.executor.memory", "900m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    )
    if FOLDER in os.environ:
        builder = builder.config(f"spark.executorEnv.{FOLDER}", os.environ[FOLDER])
    return builder.getOrCreate()
