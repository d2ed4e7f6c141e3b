"""`dualwrite console` as a process, and the broker's metrics where the extra is not installed."""

import re
import signal
import subprocess
import sys

import httpx
import pytest

from dualwrite.broker.metrics_page import MetricsPage
from dualwrite.cli import console as command
from tests.cli.operator import dualwrite
from tests.console.victim import broker_with_console


def test_console_runs_alone_and_ends_by_a_signal(shared_broker, tmp_path):
    token_file = tmp_path / "token"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "dualwrite.cli", "console"),
            *("--bootstrap-servers", shared_broker.bootstrap_servers),
            *("--token-file", str(token_file)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        address = re.fullmatch(r"console on (\S+)\n", process.stdout.readline())[1]
        assert process.stdout.readline() == f"login token in {token_file}\n"
        with httpx.Client(base_url=address, timeout=20) as client:
            page = client.get("/login").text
            fields = {
                "token": token_file.read_text().strip(),
                "form_token": re.search(r'name="form_token" value="(\w+)"', page)[1],
            }
            assert client.post("/login", data=fields, headers={"origin": address}).is_redirect
            assert "Nothing is open" in client.get("/transactions?q=no-such-id").text
            for path in ("/topics?show=all", "/groups", "/audit"):
                assert client.get(path).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_console_logs_in_to_a_broker_that_asks_for_it(tmp_path):
    users, client_config = tmp_path / "users.toml", tmp_path / "client.properties"
    users.touch(0o600)
    users.write_text('[users]\nroot = "root-password"\n')
    client_config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=root\nsasl.password=root-password\n"
    )
    settings = (
        *("--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0"),
        *("--set", f"users.file={users}", "--set", "super.users=User:root"),
    )
    with (
        broker_with_console(
            tmp_path,
            f"sqlite:///{tmp_path / 'x.db'}",
            *("--http-command-config", str(client_config)),
            listen=settings,
        ) as broker,
        httpx.Client(base_url=broker.address, timeout=20) as client,
    ):
        page = client.get("/login").text
        fields = {
            "token": broker.token,
            "form_token": re.search(r'name="form_token" value="(\w+)"', page)[1],
        }
        client.post("/login", data=fields, headers={"origin": broker.address})
        assert client.get("/topics?show=all").status_code == 200
        assert "dualwrite_connections" in client.get("/metrics").text


def test_private_token_file_is_insisted_on(tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("a-token-that-everybody-can-read")
    token_file.chmod(0o644)

    refused = dualwrite("console", "--bootstrap-servers", "127.0.0.1:1", "--token-file", token_file)

    assert refused.exit_code == 2
    assert "0600" in refused.output


def test_without_the_extra_there_are_metrics_alone(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "is_installed", lambda: False)
    page = command.start_beside(
        [],
        lambda: b"dualwrite_connections 1\n",
        port=0,
        token_file=tmp_path / "token",
        store_url=None,
        command_config=None,
    )
    address = re.search(r"metrics on (http://\S+)/metrics", capsys.readouterr().out)[1]
    try:
        assert httpx.get(f"{address}/metrics").text == "dualwrite_connections 1\n"
        assert httpx.get(f"{address}/transactions").status_code == 404
        foreign = httpx.get(f"{address}/metrics", headers={"host": "evil.example"})
        assert foreign.status_code == 403
    finally:
        page.stop()
    assert isinstance(page, MetricsPage)


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_impossible_ports_are_wrong_usage(port):
    assert dualwrite("console", "--bootstrap-servers", "h:1", "--http-port", port).exit_code == 2
