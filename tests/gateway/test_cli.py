from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

LAMINA = [sys.executable, "-c", "from gateway.cli import main; main()"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lamina(tmp_path: Path) -> Run:
    def run(
        *arguments: str,
        text: str = "",
        command: Sequence[str] = LAMINA,
        stdout: Any = subprocess.PIPE,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAMINA_")}
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env={**clean, "PYTHONPATH": os.getcwd(), "COLUMNS": "200", **environment},
            input=text,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            timeout=240,
            check=False,
        )

    return run


class Gateway(BaseHTTPRequestHandler):
    """A gateway that answers every chat with the caller's words, from its exact cache."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[dict[str, object]]] = []

    def do_GET(self) -> None:
        self._reply(b'{"object":"list","data":[{"id":"first"},{"id":"second"}]}', {"content-type": "application/json"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(body)
        words = body["messages"][-1]["content"].split(" ")
        frames: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in words]
        if words == ["fail"]:
            frames = [{"error": {"message": "the engine went away"}}]
        data = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
        self._reply(data.encode(), {"x-lamina-cache": "exact", "x-lamina-call": "C1"})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _reply(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def gateway() -> Iterator[str]:
    Gateway.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_help_names_every_command_and_where_settings_come_from(lamina: Run) -> None:
    shown = lamina("--help")

    assert shown.returncode == 0
    assert [
        word for word in ("serve", "chat", "models", "doctor", "lamina.yaml", "LAMINA_") if word not in shown.stdout
    ] == []


def test_the_command_imports_nothing_heavy_before_it_knows_what_to_do() -> None:
    code = "import sys, gateway.cli; print([m for m in sys.modules if m in {heavy!r}])"
    heavy = {"torch", "numpy", "redis", "sqlalchemy", "fastapi", "pydantic", "httpx", "yaml", "valkey"}

    shown = subprocess.run(
        [sys.executable, "-c", code.replace("{heavy!r}", repr(heavy))], capture_output=True, text=True
    )

    assert shown.stdout.strip() == "[]", shown.stderr


def test_a_wrong_setting_is_one_line_and_status_two(lamina: Run, tmp_path: Path) -> None:
    (tmp_path / "lamina.yaml").write_text("server: {prot: 1}")

    refused = lamina("serve")

    assert refused.returncode == 2
    assert refused.stderr == "lamina: lamina.yaml: server.prot: unknown key; did you mean 'port'?\n"


def test_an_option_is_checked_as_the_setting_is(lamina: Run) -> None:
    refused = lamina("serve", "--port", "70000")

    assert refused.returncode == 2
    assert "server.port" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_off_loopback_without_a_key_is_refused(lamina: Run) -> None:
    refused = lamina("serve", "--host", "0.0.0.0")

    assert refused.returncode == 2
    assert "keys.master" in refused.stderr


def test_chat_streams_the_answer_and_shows_which_layer_gave_it(lamina: Run, gateway: str) -> None:
    answered = lamina("chat", "hello there", "--url", gateway, "--system", "be brief")

    assert answered.returncode == 0, answered.stderr
    lines = answered.stdout.splitlines()
    assert lines[0] == "hello there "
    assert lines[1].startswith("[from the exact cache; first words ")
    assert lines[1].endswith("call C1]")
    assert Gateway.seen[0]["model"] == "first"
    assert Gateway.seen[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello there"},
    ]


def test_chat_asks_the_gateway_that_serves_in_the_folder(lamina: Run, gateway: str, tmp_path: Path) -> None:
    (tmp_path / ".lamina").mkdir()
    (tmp_path / ".lamina" / "status.json").write_text(json.dumps({"url": gateway}))

    answered = lamina("chat", "hello there")

    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.startswith("hello there ")


def test_chat_without_a_question_is_a_conversation_until_the_input_ends(lamina: Run, gateway: str) -> None:
    talked = lamina("chat", "--url", gateway, "--model", "second", text="one\nfail\ntwo\n")

    assert talked.returncode == 1, talked.stderr
    assert "the engine went away" in talked.stderr
    assert talked.stderr.endswith("lamina: 1 of the questions had no answer\n")
    assert ">" not in talked.stdout
    assert [message["content"] for message in Gateway.seen[-1]["messages"]] == ["one", "one ", "two"]  # type: ignore[attr-defined]


def test_chat_reads_the_address_that_openais_clients_are_given(lamina: Run, gateway: str) -> None:
    told = lamina("chat", "hello there", "--url", f"{gateway}/v1/")

    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("hello there")


@pytest.mark.parametrize("arguments", [("models",), ("chat", "hello")])
def test_an_output_that_cannot_be_written_is_one_line(lamina: Run, arguments: tuple[str, ...], gateway: str) -> None:
    words = [*arguments, "--url", gateway] if arguments[0] == "chat" else arguments
    with Path("/dev/full").open("wb") as full:
        done = lamina(*words, stdout=full)

    assert done.returncode == 1
    assert done.stderr == "lamina: the output cannot be written: no space is left\n"


def test_an_output_that_is_closed_is_no_fault(lamina: Run, gateway: str) -> None:
    words = ("chat", "hello", "--url", gateway)
    done = lamina(*words, command=("sh", "-c", '"$@" >&-', "sh", *LAMINA))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("key", ["sk-first-half\nsecond-half", "schlüssel-of-mine", "blank-at-the-end "])
@pytest.mark.parametrize("command", [("chat", "hi", "--model", "echo"), ("cache", "list")], ids=lambda words: words[0])
def test_a_key_that_no_header_can_carry_is_refused_in_one_line_that_does_not_show_it(
    lamina: Run, command: tuple[str, ...], key: str
) -> None:
    done = lamina(*command, "--url", "http://127.0.0.1:1", "--key", key, PYTHONUTF8="1")

    assert done.returncode == 1
    assert done.stderr.startswith("lamina: the key has characters that no key has")
    assert done.stderr.count("\n") == 1
    assert key.split()[0] not in done.stderr


def test_a_question_that_is_no_text_is_refused_by_name_and_the_conversation_goes_on(lamina: Run) -> None:
    done = lamina("chat", "--model", "echo", "--url", "http://127.0.0.1:1", text="\udcff\udcfe hi\n", PYTHONUTF8="1")

    assert done.returncode == 1
    assert done.stderr.startswith("this question is no UTF-8 text, so it was not sent\n")
    assert done.stderr.count("\n") == 2


def test_chat_says_in_one_line_that_nobody_serves(lamina: Run) -> None:
    refused = lamina("chat", "hello", "--url", "http://127.0.0.1:9")

    assert refused.returncode == 1
    assert "lamina serve" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_models_says_who_answers_and_where_the_weights_are(lamina: Run, tmp_path: Path) -> None:
    shown = lamina("models", XDG_CACHE_HOME=str(tmp_path / "cache"))

    assert shown.returncode == 0, shown.stderr
    assert "smollm2-135m-instruct" in shown.stdout
    assert "not fetched yet: lamina models fetch" in shown.stdout


def test_a_model_that_cannot_be_fetched_is_one_line(lamina: Run) -> None:
    refused = lamina("models", "fetch", "/no/such/model")

    assert refused.returncode == 1
    assert refused.stderr.startswith("lamina: no model at '/no/such/model'")


def test_a_log_without_a_call_is_no_log_that_agrees(lamina: Run) -> None:
    done = lamina("replay", "--all")

    assert done.returncode == 1
    assert done.stderr == "lamina: the log holds no call of that time: nothing can be replayed\n"


def test_doctor_finds_what_is_missing_and_says_how_to_mend_it(lamina: Run, tmp_path: Path) -> None:
    (tmp_path / "lamina.yaml").write_text(
        "{models: [{id: echo, backends: [{type: echo}]}, "
        "{id: far, backends: [{type: openai_compatible, base_url: 'http://127.0.0.1:9/v1'}]}], "
        "cache: {semantic: {enabled: false}}, redis: {url: 'redis://127.0.0.1:9'}, server: {port: 0}}"
    )

    shown = lamina("doctor")

    assert shown.returncode == 1
    missing = [line for line in shown.stdout.splitlines() if line.startswith("missing")]
    assert len(missing) == 2
    assert "redis.url" in missing[0]
    assert "far at http://127.0.0.1:9/v1" in missing[1]


@pytest.fixture
def shop() -> Iterator[str]:
    """A server with Anthropic's list of models, for one key, and OpenAI's below /v1; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            has_key = "right" in (self.headers.get("x-api-key"), self.headers.get("authorization", "")[-5:])
            self.send_response(404 if self.path != "/v1/models" else 200 if has_key else 401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_doctor_asks_each_server_in_its_own_way_whether_the_key_is_right(
    lamina: Run, tmp_path: Path, shop: str
) -> None:
    rows = [
        ("a", "anthropic", shop, "right"),
        ("b", "anthropic", shop, "wrong"),
        ("c", "openai_compatible", f"{shop}/v1", "right"),
        ("d", "openai_compatible", shop, "right"),
    ]
    models = [
        {"id": name, "backends": [{"type": kind, "base_url": url, "api_key": key}]} for name, kind, url, key in rows
    ]
    (tmp_path / "lamina.yaml").write_text(
        json.dumps({"models": models, "cache": {"semantic": {"enabled": False}}, "server": {"port": 0}})
    )

    lines = [line for line in lamina("doctor").stdout.splitlines() if " at http" in line]

    assert [line.split()[:2] for line in lines] == [["ok", "a"], ["missing", "b"], ["ok", "c"], ["note", "d"]]
    assert "base_url" in lines[3]


def test_doctor_is_content_where_nothing_is_missing(lamina: Run, tmp_path: Path) -> None:
    (tmp_path / "lamina.yaml").write_text(
        "{models: [{id: echo, backends: [{type: echo}]}], cache: {semantic: {enabled: false}}, server: {port: 0}}"
    )

    shown = lamina("doctor")

    assert shown.returncode == 0, shown.stdout
    assert "a private Valkey" in shown.stdout
