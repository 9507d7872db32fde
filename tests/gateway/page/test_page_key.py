"""The page where a master key is needed."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.gateway.page.conftest import Gateway, Visit, gateway_of
from tests.gateway.serving import Script

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def gateway() -> Gateway:
    """Give a gateway with a master key."""
    return gateway_of(Script(), master_key="sk-master")


@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_page_asks_for_the_key_and_keeps_it_in_the_tab_alone(visit: Visit, transport: str) -> None:
    page = await visit.open("playground")
    await expect(page.locator("#key-form")).to_be_visible()
    await expect(page.locator("#ready")).to_have_text("locked")

    await page.fill("#key", "sk-wrong")
    await page.keyboard.press("Enter")
    await expect(page.locator("#key-note")).to_contain_text("refused")
    await page.fill("#key", "sk-master")
    await page.keyboard.press("Enter")
    await expect(page.locator("#ready")).to_have_text("ready")
    await expect(page.locator("#key-form")).to_be_hidden()
    await page.select_option("#ask-transport", transport)
    await page.click("#ask-send")

    await expect(page.locator(".turn.assistant")).to_have_text("Hello")
    assert await page.evaluate("Object.values(localStorage).concat(document.cookie, location.href).join()") == (
        f",{visit.url}/#playground"
    )
    assert await page.evaluate("sessionStorage.getItem('lamina.key')") == "sk-master"
