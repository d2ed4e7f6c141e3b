"""The alert rules and the dashboard name only metrics that exist, with labels that they have."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import dualwrite.metrics
from dualwrite.broker import Broker

FOLDER = Path(__file__).parents[2] / "recipes" / "monitoring"
ALERTS = (FOLDER / "alerts.yml").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
ADDED_BY_PROMETHEUS = {"instance", "job", "le"}


def expressions():
    found = re.findall(r"^\s+expr: (.+)$", ALERTS, re.MULTILINE)
    found += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    return found


@pytest.fixture(scope="module")
def labels():
    """Label names by metric, for whatever the broker and a writing process report."""
    with Broker(http_port=0) as broker:
        text = broker.metrics_text().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        names = {name for sample in family.samples for name in sample.labels}
        found |= {family.name + suffix: names for suffix in SUFFIXES}
    # A gauge without a sample has no labels to show; these come only with partitions and groups.
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        if not found.get(name):
            found[name] = None
    for metric in vars(dualwrite.metrics).values():
        if hasattr(metric, "_labelnames"):
            names = set(metric._labelnames)
            found |= {metric._name + suffix: names for suffix in SUFFIXES}
    assert generate_latest()
    return found


@pytest.mark.parametrize("expression", expressions())
def test_metrics_of_an_expression_exist(labels, expression):
    named = re.findall(r"\b(dualwrite_\w+)(?:\{([^}]*)\})?", expression)

    assert named or expression.startswith("up{")
    for name, selector in named:
        assert name in labels
        wanted = set(re.findall(r"(\w+)\s*[=!]~?", selector))
        known = labels[name]
        assert known is None or wanted - ADDED_BY_PROMETHEUS <= known


def test_every_metric_of_the_broker_is_on_the_dashboard(labels):
    shown = " ".join(expressions())
    helped = {
        "dualwrite_log_start_offset",
        "dualwrite_high_watermark",
        "dualwrite_last_stable_offset",
    }
    with Broker(http_port=0) as broker:
        text = broker.metrics_text().decode()
    for name in re.findall(r"^# TYPE (dualwrite_\S+)", text, re.MULTILINE):
        assert name in helped or name.removesuffix("_created") in shown, name


def test_alerts_say_what_to_do():
    alerts = re.findall(r"- alert: (\w+)", ALERTS)

    assert len(alerts) == len(set(alerts)) == ALERTS.count("summary:")
    assert ALERTS.count("severity:") == len(alerts)
