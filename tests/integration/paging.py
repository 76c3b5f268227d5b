"""A real Prometheus with the rules, a real Alertmanager, and a webhook that keeps the pages."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from tests.integration.processes import free_port, get, until
from tests.real_parts import program

ROOT = Path(__file__).parents[2]


@dataclass
class Page:
    """One alert in one delivery."""

    at: float
    status: str
    labels: dict[str, str]


@dataclass
class Webhook:
    """What Alertmanager delivered."""

    port: int = 0
    pages: list[Page] = field(default_factory=list)

    def of(self, status: str, **labels: str) -> list[Page]:
        """Return the pages with a status and these labels."""
        return [p for p in list(self.pages) if p.status == status and labels.items() <= p.labels.items()]


def serve_webhook() -> tuple[Webhook, http.server.ThreadingHTTPServer]:
    """Start the webhook on loopback."""
    hook = Webhook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            now = time.time()
            hook.pages += [Page(now, alert["status"], alert["labels"]) for alert in body["alerts"]]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return hook, server


class Paging:
    """The programs; ``targets`` maps an instance label to host:port."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        self._folder = folder
        self.hook, self._server = serve_webhook()
        self.prometheus = f"127.0.0.1:{free_port()}"
        self.alertmanager = f"127.0.0.1:{free_port()}"
        self._configure(targets)
        self._processes = [self._start_alertmanager(), self._start_prometheus()]
        for name in (self.alertmanager, self.prometheus):
            until(lambda name=name: _answers(name), f"{name} is ready")  # type: ignore[misc]  # bound at once

    def _configure(self, targets: dict[str, str]) -> None:
        """Write the configurations: the repository's rules and routes, every second, without waiting to group."""
        rules = ROOT / "alerts" / "budget.rules.yml"
        scrape = [{"targets": [target], "labels": {"instance": name}} for name, target in targets.items()]
        prometheus = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager]}]}]},
            "scrape_configs": [{"job_name": "budget_exporter", "static_configs": scrape}],
        }
        routes = yaml.safe_load((ROOT / "alerts" / "alertmanager.yml").read_text())
        hook = [{"url": f"http://127.0.0.1:{self.hook.port}/", "send_resolved": True}]
        routes["receivers"] = [{"name": r["name"], "webhook_configs": hook} for r in routes["receivers"]]
        for route in (routes["route"], *routes["route"]["routes"]):
            route.update(group_wait="0s", group_interval="1s")
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(prometheus))
        (self._folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))

    def _start_prometheus(self) -> subprocess.Popen[bytes]:
        return self._start(
            program("prometheus"),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/tsdb",
            f"--web.listen-address={self.prometheus}",
            "--log.level=warn",
        )

    def _start_alertmanager(self) -> subprocess.Popen[bytes]:
        return self._start(
            program("prometheus-alertmanager"),
            f"--config.file={self._folder}/alertmanager.yml",
            f"--storage.path={self._folder}/alertmanager",
            f"--web.listen-address={self.alertmanager}",
            "--cluster.listen-address=",
        )

    def _start(self, *argv: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{Path(argv[0]).name}.log"
        with log.open("wb") as output:
            return subprocess.Popen(argv, stdout=output, stderr=output, cwd=self._folder)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the result of an instant query; fail where it is refused."""
        status, body = get(f"http://{self.prometheus}/api/v1/query?query={quote(expr)}")
        answer = json.loads(body)
        assert status == 200, f"{expr}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def close(self) -> None:
        """End the programs by their ids."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._server.shutdown()
        self._server.server_close()


def _answers(address: str) -> bool:
    try:
        return get(f"http://{address}/-/ready")[0] == 200
    except OSError:
        return False
