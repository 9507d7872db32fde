"""New settings while serving, for real: two workers, calls all the time, and not one of them fails."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx

from tests.integration.conftest import Served, until

Serve = Callable[..., Served]
BASE = """
layers: [call_log, limits, input_checks, exact_cache, output_checks, router]
cache: {semantic: {enabled: false}}
server: {workers: 2}
"""
ONE = BASE + "models: [{id: first, backends: [{type: echo}]}]\n"
TWO = BASE + "models: [{id: first, backends: [{type: echo}]}, {id: second, backends: [{type: echo}]}]\n"


def write(served: Served, text: str) -> None:
    """Replace the file in one step, as editors do."""
    scratch = served.folder / "lamina.yaml.new"
    scratch.write_text(text)
    scratch.replace(served.folder / "lamina.yaml")


def hang_up(served: Served) -> None:
    os.kill(served.process.pid, signal.SIGHUP)


def ask(url: str, text: str, *, model: str = "first") -> httpx.Response:
    """Ask over a connection of its own, so that either worker may answer."""
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)


def said(served: Served, words: str) -> str | None:
    return next((line for line in served.lines if words in line), None)


def has_more(count: Callable[[], int], than: int) -> bool:
    return count() > than


def num_reloads(served: Served) -> int:
    return len([line for line in served.lines if "2 of 2 workers" in line])


def models(served: Served) -> set[str]:
    """List the models that workers answer with, over a few connections."""
    lists = [httpx.get(f"{served.url}/v1/models", timeout=30).json()["data"] for _ in range(8)]
    counts = {tuple(item["id"] for item in found) for found in lists}
    assert len(counts) <= 2
    return set.intersection(*(set(found) for found in counts))


class Load:
    """Ask all the time, over connections that stay and over new ones."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statuses: list[int | str] = []
        self._ending = threading.Event()

    def _ask(self, number: int) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            count = 0
            while not self._ending.is_set():
                count += 1
                body: dict[str, Any] = {
                    "model": "first",
                    "messages": [{"role": "user", "content": f"{number} {count}"}],
                    "stream": count % 2 == 0,
                }
                try:
                    post = client.post if number % 2 else httpx.post
                    path = "/v1/chat/completions"
                    reply = post(path if number % 2 else self.url + path, json=body)
                    is_whole = reply.text.rstrip().endswith(("[DONE]", "}"))
                    self.statuses.append(reply.status_code if is_whole else "cut")
                except httpx.HTTPError as exc:
                    self.statuses.append(repr(exc))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()


def test_under_load_no_call_fails_while_settings_change(serve: Serve) -> None:
    served = serve(config=ONE).wait_ready()
    load = Load(served.url)

    with load.running():
        until(lambda: len(load.statuses) > 20)
        for text, expected in ((TWO, {"first", "second"}), (ONE, {"first"}), (TWO, {"first", "second"})):
            done = num_reloads(served)
            write(served, text)
            hang_up(served)
            until(partial(has_more, partial(num_reloads, served), done))
            assert models(served) == expected
            before = len(load.statuses)
            until(partial(has_more, load.statuses.__len__, before + 20))

    assert set(load.statuses) == {200}
    assert all(ask(served.url, str(number), model="second").status_code == 200 for number in range(6))
    until(lambda: len(served.records()) >= len(load.statuses))
    until(lambda: served.num_chats() >= len(load.statuses) + 6)  # another worker's numbers come a little later
    assert served.num_chats() == len(load.statuses) + 6


def test_a_changed_file_is_noticed_and_a_wrong_one_is_refused_by_name(serve: Serve) -> None:
    served = serve(config=ONE).wait_ready()

    write(served, TWO.replace("id: second", "ident: second"))
    until(lambda: said(served, "refused, the old ones stay: models[1].ident"))
    assert models(served) == {"first"}

    write(served, ONE.replace("workers: 2", "workers: 3"))
    until(lambda: said(served, "server.workers: cannot change while serving"))
    write(served, ONE.replace("models:", "engine: {page_size: 8}\nmodels:"))
    until(lambda: said(served, "engine.page_size: cannot change while serving"))
    write(served, ONE.replace("models:", "database: {url: 'sqlite:////tmp/x.db'}\nmodels:"))
    until(lambda: said(served, "database.url: cannot change while serving"))
    assert ask(served.url, "still here").status_code == 200

    write(served, TWO)
    until(lambda: said(served, "in use, by 2 of 2 workers"))
    assert models(served) == {"first", "second"}


def test_a_layer_that_cannot_be_loaded_leaves_every_worker_as_it_was(serve: Serve) -> None:
    served = serve(config=ONE).wait_ready()

    write(served, ONE.replace("output_checks, router", "output_checks, 'nobody:Layer', router"))
    line = until(lambda: said(served, "refused, the old ones stay"))

    assert "cannot import 'nobody:Layer'" in line
    assert [ask(served.url, str(number)).status_code for number in range(8)] == [200] * 8


def test_a_worker_that_dies_later_starts_from_the_new_settings(serve: Serve) -> None:
    served = serve(config=ONE).wait_ready()
    write(served, TWO)
    hang_up(served)
    until(lambda: said(served, "in use, by 2 of 2 workers"))

    for name in ("worker-0", "worker-1"):
        is_back = served.kill_child(name)
        until(is_back)

    assert models(served) == {"first", "second"}


def test_a_stream_that_began_before_ends_whole(serve: Serve) -> None:
    served = serve(config=ONE).wait_ready()
    words = "word " * 4000
    body = {"model": "first", "messages": [{"role": "user", "content": words}], "stream": True}

    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        write(served, TWO)
        hang_up(served)
        until(lambda: said(served, "in use, by 2 of 2 workers"))
        rest = list(lines)

    assert rest[-2] == "data: [DONE]"
    assert models(served) == {"first", "second"}
