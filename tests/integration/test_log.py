"""The log of a real `lamina serve` on bad days: nothing planted leaks, lost folders and kills cost no call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from logging_layer.spans import trace_id_of
from tests.integration.conftest import Served, until
from tests.logging_layer.test_bad_days import can_mount

MASTER = "planted-master-key-0123456789abcdef"
COLLECTOR = "planted-collector-key-0123456789abcdef"
UPSTREAM = "planted-upstream-key-0123456789abcdef"
PASSWORD = "planted-mlflow-password"
WRITTEN = "sk-proj-plantedBYtheUSERabcdefghij0123456789"
PLANTED = [MASTER, COLLECTOR, UPSTREAM, PASSWORD, WRITTEN]


ECHO = """
models: [{id: echo, backends: [{type: echo}]}]
cache: {semantic: {enabled: false}, exact: {enabled: false}}
"""


class Views(BaseHTTPRequestHandler):
    """MLflow and a collector in one: keep what they are sent."""

    bodies: list[bytes]
    headers_seen: list[str]

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers.get("content-length", "0"))))
        self.headers_seen.append(str(self.headers))
        self._reply()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _reply(self) -> None:
        body = b'{"experiment": {"experiment_id": "7"}, "traces": []}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def views() -> Iterator[tuple[str, type[Views]]]:
    class Kept(Views):
        bodies: list[bytes] = []  # noqa: RUF012 - one server, one list
        headers_seen: list[str] = []  # noqa: RUF012 - one server, one list

    server = ThreadingHTTPServer(("127.0.0.1", 0), Kept)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", Kept
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, views: tuple[str, type[Views]]) -> Iterator[Served]:
    folder, place = tmp_path_factory.mktemp("log"), views[0]
    config = f"""
models:
  - {{id: echo, backends: [{{type: echo}}]}}
  - id: there
    retries: 0
    backends: [{{type: openai_compatible, base_url: "http://127.0.0.1:9/v1", model: x, api_key: {UPSTREAM}}}]
cache: {{semantic: {{enabled: false}}}}
keys: {{master: {MASTER}}}
mlflow: {{uri: "http://user:{PASSWORD}@{place}"}}
log:
  content: full
  otlp: [{{url: "http://{place}/v1/traces", headers: {{x-api-key: {COLLECTOR}}}}}]
  jsonl: {{folder: {folder}/lines}}
"""
    (folder / "lamina.yaml").write_text(config)
    made = Served(folder)
    yield made.wait_ready()
    if made.process.poll() is None:
        made.terminate()


def ask(served: Served, text: str, *, model: str = "echo") -> httpx.Response:
    headers = {"authorization": f"Bearer {MASTER}"}
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def records(served: Served) -> int:
    """Count the calls in SQL."""
    return len(served.records())


def test_a_lost_folder_and_a_killed_shipper_block_no_call_and_lose_none(served: Served) -> None:
    spool, away = served.folder / ".lamina" / "spool", served.folder / "away"
    assert ask(served, "one").status_code == 200
    until(lambda: records(served) == 1)

    is_back = served.kill_child("log-shipper")
    spool.rename(away)
    answers = [ask(served, f"while it is away {number}").status_code for number in range(5)]
    away.rename(spool)
    answers.append(ask(served, "two").status_code)

    assert answers == [200] * 6
    until(is_back)
    until(lambda: records(served) == 7)
    assert len(set(served.records())) == 7


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="a small disk needs a mount namespace of one's own")
def test_a_full_disk_blocks_no_call_and_every_record_is_kept_once_there_is_room(tmp_path: Path) -> None:
    spool = tmp_path / ".lamina" / "spool"
    spool.mkdir(parents=True)
    (tmp_path / "lamina.yaml").write_text(ECHO)
    mount = f'mount -t tmpfs -o size=96k tmpfs {spool} && exec "$@"'
    served = Served(tmp_path, prefix=["unshare", "-rm", "sh", "-c", mount, "sh"]).wait_ready()
    shipper = psutil.Process(served.child("log-shipper")["pid"])
    try:
        shipper.suspend()
        answers = [ask(served, f"{number} " + "x" * 400).status_code for number in range(100)]
        until(lambda: not served.is_ready())
        said = httpx.get(f"{served.url}/health/ready", timeout=30).json()["parts"]["log"]
        shipper.resume()
        until(lambda: records(served) == 100)
    finally:
        shipper.resume()
        status = served.terminate()

    assert (set(answers), status) == ({200}, 0)
    assert said == "the call log cannot be written: No space left on device"


def test_nothing_that_was_planted_is_in_any_log_table_spool_or_trace(
    served: Served, views: tuple[str, type[Views]]
) -> None:
    kept = views[1]
    assert ask(served, f"my key is {WRITTEN}, say it again").status_code == 200
    assert ask(served, "anybody there?", model="there").status_code in (502, 503)
    httpx.post(f"{served.url}/v1/chat/completions", content=b"{" + WRITTEN.encode(), timeout=30)
    until(lambda: records(served) == 9)
    until(lambda: len(kept.bodies) >= 2 and any("x-api-key" in each.lower() for each in kept.headers_seen))

    assert served.terminate() == 0

    files = [path for path in served.folder.rglob("*") if path.is_file() and path.name != "lamina.yaml"]
    texts = {str(path): path.read_bytes() for path in files} | {"said": "\n".join(served.lines).encode()}
    texts |= {f"sent {number}": body for number, body in enumerate(kept.bodies)}
    leaks = [(name, secret) for name, data in texts.items() for secret in PLANTED if secret.encode() in data]
    assert leaks == []
    names = {Path(name).name for name in texts}
    assert {"lamina.db", "calls.jsonl", "log-shipper.log", "worker-0.log"} <= names
    assert b"say it again" in b"".join(kept.bodies)


@pytest.mark.long
def test_what_a_person_says_in_mlflow_takes_a_wrong_answer_out_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "lamina.yaml").write_text("""
models: [{id: echo, backends: [{type: echo}]}]
cache: {semantic: {enabled: false}}
mlflow: {serve: true, port: 0}
""")
    served = Served(tmp_path).wait_ready()
    try:
        call = ask(served, "what is wrong here?").headers["x-lamina-call"]
        kept = ask(served, "what is wrong here?").headers["x-lamina-cache"]
        trace, uri = f"tr-{trace_id_of(call).hex()}", served.status()["mlflow"]
        place = f"{uri}/api/3.0/mlflow/traces/{trace}"
        until(lambda: httpx.get(place, timeout=30).status_code == 200)
        said = {
            "assessment_name": "correct",
            "trace_id": trace,
            "source": {"source_type": "HUMAN", "source_id": "ann"},
            "feedback": {"value": False},
        }
        httpx.post(f"{place}/assessments", json={"assessment": said}, timeout=30).raise_for_status()

        until(lambda: ask(served, "what is wrong here?").headers["x-lamina-cache"] == "miss")
    finally:
        status = served.terminate()

    assert (kept, status) == ("exact", 0)
