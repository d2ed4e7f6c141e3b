"""A standalone Spark cluster of several hosts on one machine, each with a loopback address of its own.

Spark runs a speculative copy only on another host than the first attempt's, and in `local-cluster` all
executors have the same one.
"""

import os
import re
import subprocess
import time
from pathlib import Path

import pyspark

from tests.spark.sessions import ROOT

SECONDS_MAX = 120


class Standalone:
    """A master and its workers, one core each."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "Standalone":
        try:
            master = self._start("127.0.0.1", "master.Master", "--port", "0")
            self.url = _wait_for(master, r"Starting Spark master at (spark://\S+)")
            for number in range(self._workers):
                host = f"127.0.0.{number + 2}"
                worker = self._start(
                    host, "worker.Worker", "--cores", "1", "--memory", "900m",
                    "--work-dir", str(self._folder / host), self.url,
                )  # fmt: skip
                _wait_for(worker, r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, host: str, role: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        output = self._folder / f"{host}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        command += ["--host", host, "--webui-port", "0", *arguments]
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host}
        with output.open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            )
        return output


def _wait_for(output: Path, pattern: str) -> str:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        found = re.search(pattern, output.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{pattern} was not said: {output.read_text()[-2000:]}")
