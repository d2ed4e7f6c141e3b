"""Prometheus itself reads the rules and the dashboard, and sees a stuck transaction."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.cli.operator import dualwrite
from tests.console.victim import broker_with_console, kill_writer, make_orders

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "recipes" / "monitoring"
ALERTS = FOLDER / "alerts.yml"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
SECONDS = 60
# What Grafana puts in the place of its variables.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "1m"}
# Panels of what does not happen in the test, or happens in the process that writes.
EMPTY = re.compile(
    r"dualwrite_(transactions_total|open_window|recovered|alarms|group_lag_records)\w*"
)


def tool(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_rules_are_rules():
    done = subprocess.run(
        [tool("promtool"), "check", "rules", ALERTS], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ALERTS.read_text().count('- alert:')} rules found" in done.stdout


def test_each_alert_fires_when_it_should():
    cases = HERE / "alerts_test.yml"
    done = subprocess.run(
        [tool("promtool"), "test", "rules", cases], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:", cases.read_text()))
    assert tested == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))


class Prometheus:
    """A server that scrapes one address every second, with the rules made impatient."""

    def __init__(self, program, folder, target):
        rules = re.sub(r"^(\s+for:) \S+$", r"\1 1s", ALERTS.read_text(), flags=re.MULTILINE)
        rules = rules.replace("_open_time_max_seconds > 60 ", "_open_time_max_seconds > 1 ")
        (folder / "alerts.yml").write_text(rules)
        host = urllib.parse.urlsplit(target).netloc
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "alerts.yml")],
            "scrape_configs": [
                {"job_name": "dualwrite-broker", "static_configs": [{"targets": [host]}]}
            ],
        }
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def firing(self):
        alerts = self.get("alerts")["alerts"]
        return {a["labels"]["alertname"]: a for a in alerts if a["state"] == "firing"}

    def wait(self, look):
        """Ask until there is an answer; the server needs a while to listen and to scrape."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except (urllib.error.URLError, ConnectionError):
                assert self._process.poll() is None
            time.sleep(0.1)
        raise AssertionError("Prometheus has not seen it")

    def stop(self):
        self._process.terminate()
        self._process.wait(20)
        self._log.close()


@pytest.fixture(scope="module")
def stuck(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stuck")
    program = tool("prometheus")
    url = f"sqlite:///{folder / 'orders.db'}"
    make_orders(url)
    with broker_with_console(folder, url) as broker:
        prometheus = Prometheus(program, folder, broker.address)
        try:
            kill_writer(broker.bootstrap, url, 1, 3, "committed")
            broker.prometheus = prometheus
            broker.url = url
            yield broker
        finally:
            prometheus.stop()


def queries():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], re.sub(r'"\$\w+"', '".*"', expression)


@pytest.mark.slow
def test_alert_fires_on_a_prepared_transaction_and_rests_once_it_is_resolved(stuck):
    prometheus = stuck.prometheus

    alert = prometheus.wait(lambda: prometheus.firing().get("PreparedTransactionStuck"))
    assert alert["labels"]["severity"] == "page"
    assert "dualwrite txn explain" in alert["annotations"]["description"]

    for title, expression in queries():
        assert "$" not in expression, title
        found = prometheus.wait(
            lambda expression=expression: (
                prometheus.get("query", query=expression)["result"] or EMPTY.search(expression)
            )
        )
        assert found, (title, expression)

    to = ("--store", stuck.url, "--bootstrap-servers", stuck.bootstrap)
    assert dualwrite("txn", "resolve", "demo-0", *to).exit_code == 0
    prometheus.wait(lambda: "PreparedTransactionStuck" not in prometheus.firing())
