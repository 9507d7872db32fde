"""Starts that are refused, and ends that leave nothing behind."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.integration.conftest import Served, until

ECHO = """
models: [{id: echo, backends: [{type: echo}]}]
cache: {semantic: {enabled: false}}
"""
Serve = Callable[..., Served]


def ask(served: Served, text: str) -> httpx.Response:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], "temperature": 0}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30)


def test_an_echo_needs_neither_engine_nor_cache_owner(serve: Serve) -> None:
    served = serve(config=ECHO).wait_ready()

    assert sorted(served.status()["children"]) == ["log-shipper", "valkey", "worker-0"]
    client = OpenAI(base_url=f"{served.url}/v1", api_key="anything")
    answer = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "Hello there"}])
    assert answer.choices[0].message.content == "Hello there"
    client.close()


def test_a_second_serve_in_the_same_folder_is_refused_in_one_line(serve: Serve) -> None:
    first = serve(config=ECHO).wait_ready()

    second = serve()

    assert second.wait() == 1
    assert len(second.lines) == 1
    assert f"pid {first.process.pid}" in second.lines[0]
    assert ask(first, "still here").status_code == 200


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ECHO + "redis: {url: 'redis://127.0.0.1:1'}", ["redis.url", "127.0.0.1:1"]),
        (ECHO + "database: {url: 'postgresql+psycopg2://me:hunter2@127.0.0.1:1/x'}", ["database.url", "127.0.0.1:1"]),
        (ECHO + "database: {url: 'oracle://x'}", ["database.url", "sqlite or postgresql"]),
        ("engine: {model: /no/such.gguf}", ["/no/such.gguf", "smollm2-135m-instruct"]),
        (ECHO + "validators: {input: [{check: lenght}]}", ["validators.input[0].check", "length"]),
        ("layers: [stranger:Missing, router]\n" + ECHO, ["stranger"]),
        ("server: {prot: 1}", ["server.prot", "port"]),
    ],
)
def test_what_is_missing_at_start_is_one_line_and_nothing_stays(serve: Serve, config: str, words: list[str]) -> None:
    served = serve(config=config)

    assert served.wait() != 0
    said = served.lines[-1]
    assert [word for word in words if word not in said] == []
    assert "hunter2" not in said
    assert "Traceback" not in "\n".join(served.lines)
    assert not list(served.folder.glob(".lamina/status.json"))


def test_a_taken_port_is_refused_in_one_line(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        served = serve("--port", port, config=ECHO)

        assert served.wait() == 1
    assert len(served.lines) == 1
    assert f"port {port}" in served.lines[0]


def test_a_kill_of_the_supervisor_ends_every_child_within_seconds(serve: Serve) -> None:
    served = serve("--workers", "2", config=ECHO).wait_ready()
    family = served.family()

    served.process.kill()
    served.wait()

    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    again = serve().wait_ready()
    assert ask(again, "and the folder can be used again").status_code == 200


def test_sigterm_during_the_start_leaves_nothing(serve: Serve) -> None:
    served = serve(config=ECHO)
    until(lambda: (served.folder / ".lamina" / "status.json").exists() and served.status()["children"])
    family = served.family()

    assert served.terminate() == 0
    assert psutil.wait_procs(family, timeout=30)[1] == []


def test_sigterm_loses_no_record_and_ends_with_zero(serve: Serve) -> None:
    served = serve("--workers", "2", config=ECHO).wait_ready()
    family = served.family()

    ids = [ask(served, f"call {number}").headers["x-lamina-call"] for number in range(20)]

    assert served.terminate() == 0
    assert sorted(id for id, _ in served.records()) == sorted(ids)
    assert psutil.wait_procs(family, timeout=30)[1] == []


def test_a_killed_worker_leaves_the_other_serving_and_comes_back(serve: Serve) -> None:
    served = serve("--workers", "2", config=ECHO).wait_ready()
    ids = [ask(served, f"before {number}").headers["x-lamina-call"] for number in range(5)]
    time.sleep(1.0)  # what was answered more than a second before a kill is not lost

    is_back = served.kill_child("worker-0")

    # A connection that the dead worker had accepted is lost; new ones are all answered by the other.
    assert [ask(served, f"after {number}").status_code for number in range(5)] == [200] * 5
    until(is_back)
    until(lambda: {id for id, _ in served.records()} >= set(ids))


def test_a_killed_valkey_costs_hits_alone(serve: Serve) -> None:
    served = serve(config=ECHO).wait_ready()
    ask(served, "again")
    assert ask(served, "again").headers["x-lamina-cache"] == "exact"

    is_back = served.kill_child("valkey")

    down = ask(served, "again")
    assert down.status_code == 200
    until(is_back)
    # Written out every second: the answer may have been lost, a new one is kept.
    until(lambda: ask(served, "again").headers["x-lamina-cache"] == "exact")


def test_a_killed_shipper_loses_no_record(serve: Serve) -> None:
    served = serve(config=ECHO).wait_ready()

    is_back = served.kill_child("log-shipper")
    ids = {ask(served, f"call {number}").headers["x-lamina-call"] for number in range(5)}

    until(is_back)
    until(lambda: {id for id, _ in served.records()} >= ids)


def test_a_strangers_layer_from_one_file_answers(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(
        "from contextlib import aclosing\n"
        "from dataclasses import replace\n"
        "class Shout:\n"
        "    def __init__(self, suffix):\n"
        "        self.suffix = suffix\n"
        "    async def __call__(self, call, next):\n"
        "        messages = [{**m, 'content': m['content'].upper() + self.suffix} for m in call.request.messages]\n"
        "        call = replace(call, request=call.request.with_fields(messages=messages))\n"
        "        async with aclosing(next(call)) as events:\n"
        "            async for event in events:\n"
        "                yield event\n"
    )

    served = serve(config=ECHO + "layers: [call_log, {'stranger:Shout': {suffix: '!'}}, router]").wait_ready()

    assert ask(served, "hello").json()["choices"][0]["message"]["content"] == "HELLO!"


def test_guardrails_checks_run_in_their_worker_and_fail_as_they_say_while_it_is_down(serve: Serve) -> None:
    checks = "validators: {input: [{check: guardrails/valid-length, min: 1, max: 20, on_fail: block, fail: closed}]}"
    served = serve(config=ECHO + checks).wait_ready()
    assert ask(served, "short").status_code == 200
    assert ask(served, "much longer than twenty characters").status_code == 400

    is_back = served.kill_child("guardrails")

    assert ask(served, "also short").status_code == 503
    until(is_back)
    until(lambda: ask(served, "also short").status_code == 200)


def test_with_mlflow_every_call_is_a_trace_after_sigterm(serve: Serve) -> None:
    served = serve("--mlflow", "--workers", "2", config=ECHO).wait_ready()
    family = served.family()
    tracking = served.status()["mlflow"]

    ids = [ask(served, f"call {number}").headers["x-lamina-call"] for number in range(8)]
    assert httpx.get(f"{tracking}/health", timeout=30).status_code == 200

    assert served.terminate() == 0
    assert sorted(id for id, _ in served.records()) == sorted(ids)
    with contextlib.closing(sqlite3.connect(served.folder / ".lamina" / "mlflow" / "mlflow.db")) as database:
        assert database.execute("select count(*) from trace_info").fetchone() == (8,)
    assert psutil.wait_procs(family, timeout=30)[1] == []


@pytest.mark.long
def test_a_killed_mlflow_comes_back_on_its_port(serve: Serve) -> None:
    served = serve("--mlflow", config=ECHO).wait_ready()
    tracking = served.status()["mlflow"]

    is_back = served.kill_child("mlflow")
    assert ask(served, "nothing waits for it").status_code == 200

    until(is_back)
    assert served.status()["mlflow"] == tracking
    assert httpx.get(f"{tracking}/health", timeout=30).status_code == 200
