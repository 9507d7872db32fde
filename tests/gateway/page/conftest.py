"""A headless Chromium, and a gateway around small fakes whose page it opens."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from fastapi import APIRouter
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright, expect

from gateway.admin_parts import AdminParts
from gateway.live import LiveCalls
from gateway.parts import AppParts
from gateway.settings import Settings
from logging_layer.call_log import CallLog
from logging_layer.codec import decode
from logging_layer.record import CallRecord
from orchestration.core import Secret, compose
from tests.gateway.serving import Script, parts_of, served

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL = "apt-get update -q && apt-get install -y -q --no-install-recommends chromium"
HOW = f"install it ({INSTALL}), or name it in LAMINA_CHROMIUM"


def _found() -> str | None:
    named = os.environ.get("LAMINA_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def _installed() -> str | None:
    """Install Debian's where that was asked for and can be: CI machines have none."""
    is_wanted = os.environ.get("LAMINA_BROWSER") in ("install", "required")
    if is_wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["sh", "-c", INSTALL], env=environment, timeout=240, check=False, capture_output=True)
    return _found()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Give the path of Chromium.

    `LAMINA_BROWSER=install` installs it where it is missing, `required` fails where it then still is; otherwise the
    tests that need it are skipped, which the summary says.
    """
    path = _found() or _installed()
    if path is None and os.environ.get("LAMINA_BROWSER") == "required":
        pytest.fail(f"no Chromium is here and none could be installed: {HOW}")
    if path is None:
        pytest.skip(f"no Chromium is here: {HOW}")
    return path


@dataclass
class Visit:
    """A browser's visit: what it asked for elsewhere, and what it complained about."""

    context: BrowserContext
    url: str
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def open(self, view: str = "live") -> Page:
        """Open the page at a view."""
        page = await self.context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)
        await page.goto(f"{self.url}/#{view}")
        return page

    def _console(self, message: ConsoleMessage) -> None:
        # That a call was refused is an error to the browser, too.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith(self.url):
            self.elsewhere.append(request.url)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Give a headless Chromium, one for all tests: they share its loop."""
    expect.set_options(timeout=60_000)
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        await browser.close()


@dataclass
class Kept:
    """A spool and a reader in one."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    def append(self, record: CallRecord) -> None:
        self.records[record.id] = decode(record.to_json())

    async def get(self, call_id: str) -> dict[str, Any] | None:
        return self.records.get(call_id)


@dataclass
class Gateway:
    """A gateway whose handler plays a script, with its call log and its live calls."""

    script: Script
    kept: Kept
    parts: AppParts
    policies: list[dict[str, Any]]
    """What was put in force while serving, the newest first."""


def policies_router(policies: list[dict[str, Any]]) -> APIRouter:
    """Answer with these policies where the gateway answers with its history."""
    router = APIRouter()

    @router.get("/admin/cache/policy")
    async def get_policies() -> dict[str, Any]:
        return {"policies": policies}

    return router


def gateway_of(script: Script, *, master_key: str | None = None) -> Gateway:
    """Put one together."""
    live, kept = LiveCalls("worker-0"), Kept()

    async def ask_workers(view: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"worker-0": live.view(params["seen"])} if view == "live" else {}

    facts = {
        **{"version": "1", "node": "here", "processes": {}, "mlflow": "http://127.0.0.1:5000", "content": "full"},
        "layers": list(Settings().layers),
        "cache": {
            "exact": {"enabled": True, "ttl_s": 86400},
            "semantic": {"enabled": True, "policy": "static", "threshold": 0.95, "ttl_s": 86400},
        },
    }
    log = CallLog(kept, content="full", worker="worker-0", watcher=live)
    policies: list[dict[str, Any]] = []
    admin = AdminParts(ask_workers=ask_workers, facts=lambda: facts, routers=(policies_router(policies),))
    plain = parts_of(compose([log], script), calls=kept, admin=admin)
    if master_key is None:
        return Gateway(script, kept, plain, policies)
    access = type(plain.access)(tenant_key=Secret("t"), master_key=Secret(master_key))
    parts = parts_of(plain.handler, calls=kept, admin=plain.admin, access=access)
    return Gateway(script, kept, parts, policies)


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, gateway: Gateway) -> AsyncIterator[Visit]:
    """Visit the test's `gateway`; fails where the page asked anything of anybody else, or the browser complained."""
    async with served(gateway.parts) as port:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(60_000)
        visit = Visit(context, f"http://127.0.0.1:{port}")
        yield visit
        await context.close()
    assert visit.elsewhere == []
    assert visit.complaints == []
