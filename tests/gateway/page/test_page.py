"""The page at `/` in a real browser."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, expect

from gateway.page.routes import FILES
from orchestration.core import Delta, Finish, Start, Usage
from orchestration.core.errors import BackendUnavailable
from tests.gateway.page.conftest import Gateway, Visit, gateway_of
from tests.gateway.serving import CHAT, Script, ask, chat

pytestmark = pytest.mark.asyncio(loop_scope="session")
EVIL = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
ANSWER = (Start("tiny-1", "fake"), Delta(text="In "), Delta(text="France."), Finish({0: "stop"}, Usage(5, 2)))


@pytest.fixture
def script() -> Script:
    """Give what the gateway's backend does."""
    return Script(ANSWER)


@pytest.fixture
def gateway(script: Script) -> Gateway:
    """Give the gateway that is visited."""
    return gateway_of(script)


def port_of(visit: Visit) -> int:
    return int(visit.url.rpartition(":")[2])


async def send(page: Page, prompt: str) -> None:
    await page.fill("#ask-prompt", prompt)
    await page.click("#ask-send")


async def test_page_shows_a_call_as_it_comes_with_the_layer_that_answered(visit: Visit) -> None:
    page = await visit.open()
    await expect(page.locator("#live-empty")).to_be_visible()

    await ask(port_of(visit), CHAT, chat())

    row = page.locator("#live-rows tr")
    await expect(row).to_have_count(1)
    await expect(row.locator(".badge")).to_have_text("backend")
    await expect(row.locator("td").nth(2)).to_contain_text("tiny")
    await expect(page.locator("#ready")).to_have_text("ready")


async def test_page_shows_a_running_call_and_then_its_end(visit: Visit, script: Script) -> None:
    gate = asyncio.Event()
    script.steps = (ANSWER[0], gate.wait, *ANSWER[1:])
    page = await visit.open()

    asking = asyncio.create_task(ask(port_of(visit), CHAT, chat()))
    await expect(page.locator("#live-rows .badge")).to_have_text("running")
    gate.set()
    await asking

    await expect(page.locator("#live-rows .badge")).to_have_text("backend")
    await expect(page.locator("#live-rows tr")).to_have_count(1)


@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_playground_streams_piece_by_piece(visit: Visit, script: Script, transport: str) -> None:
    gate = asyncio.Event()
    script.steps = (*ANSWER[:2], gate.wait, *ANSWER[2:])
    page = await visit.open("playground")
    await page.select_option("#ask-transport", transport)
    await page.fill("#ask-system", "Be brief.")

    await send(page, "Where is Paris?")
    await expect(page.locator(".turn.assistant")).to_have_text("In ")
    gate.set()

    await expect(page.locator(".turn.assistant")).to_have_text("In France.")
    facts = page.locator("#outcome-facts")
    await expect(facts).to_contain_text("Answered byfake")
    await expect(facts).to_contain_text("Tokens5 → 2")
    await expect(facts).to_contain_text("Ended bystop")
    await expect(page.locator("#outcome-path .answered")).to_contain_text("router")
    fields = script.calls[0].request.fields
    assert fields["messages"][0] == {"role": "system", "content": "Be brief."}
    assert fields["temperature"] == 0


@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_stop_closes_the_answer(visit: Visit, script: Script, transport: str) -> None:
    script.steps = (*ANSWER[:2], asyncio.Event().wait)
    page = await visit.open("playground")
    await page.select_option("#ask-transport", transport)

    await send(page, "Where is Paris?")
    await expect(page.locator(".turn.assistant")).to_have_text("In ")
    await page.keyboard.press("Escape")

    async with asyncio.timeout(30):
        await script.closed.wait()
    await expect(page.locator("#talk")).to_contain_text("Stopped.")
    await expect(page.locator("#ask-send")).to_be_enabled()


async def test_conversation_goes_on_where_it_is_to(visit: Visit, script: Script) -> None:
    page = await visit.open("playground")
    await page.check("#ask-keep")

    await send(page, "Where is Paris?")
    await expect(page.locator("#outcome")).to_be_visible()
    await send(page, "And Rome?")
    await expect(page.locator(".turn.assistant")).to_have_count(2)
    await expect(page.locator("#ask-send")).to_be_enabled()

    assert [turn["content"] for turn in script.calls[1].request.fields["messages"]] == [
        "Where is Paris?",
        "In France.",
        "And Rome?",
    ]


@pytest.mark.parametrize("transport", ["http", "socket"])
async def test_markup_in_prompts_answers_and_errors_is_text(visit: Visit, script: Script, transport: str) -> None:
    script.steps = (Start(EVIL, EVIL), Delta(text=EVIL), Finish({0: "stop"}))
    page = await visit.open("playground")
    await page.select_option("#ask-transport", transport)

    await send(page, EVIL)
    await expect(page.locator(".turn.assistant")).to_have_text(EVIL)
    script.steps = (BackendUnavailable(EVIL),)
    await send(page, EVIL)
    await expect(page.locator(".turn.error")).to_have_text(EVIL)
    await page.click("nav a[href='#live']")
    await expect(page.locator("#live-rows td.asked").first).to_have_text(EVIL)
    await page.locator("#live-rows .open").first.click()
    await expect(page.locator("#call-body")).to_contain_text(EVIL)

    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main img, dialog img, main script").count() == 0


async def test_a_call_opens_with_every_decision(visit: Visit, gateway: Gateway) -> None:
    await ask(port_of(visit), CHAT, chat())
    page = await visit.open()

    await page.locator("#live-rows .open").click()

    (call_id,) = gateway.kept.records
    await expect(page.locator("#call-title")).to_have_text(call_id)
    body = page.locator("#call-body")
    await expect(body).to_contain_text("answered (200)")
    await expect(body).to_contain_text("In France.")
    await expect(body.locator("a")).to_have_attribute("href", "http://127.0.0.1:5000")
    await page.keyboard.press("Escape")
    await expect(page.locator("#call")).to_be_hidden()


async def test_a_call_that_was_not_served_says_how_near_its_neighbour_was_and_why_not(
    visit: Visit, gateway: Gateway
) -> None:
    await ask(port_of(visit), CHAT, chat())
    (record,) = gateway.kept.records.values()
    record["cache"] |= {"threshold": 0.802, "candidates": [{"similarity": 0.3}, {"similarity": 0.7978}]}
    record["extra"] = {"semantic": "below_bar"}
    page = await visit.open()

    await page.locator("#live-rows .open").click()

    await expect(page.locator("#call-body .gauge")).to_have_text("0.798 / 0.802")
    await expect(page.locator("#call-body dl")).to_contain_text("Semantic cachebelow bar")
    await page.set_viewport_size({"width": 390, "height": 740})
    assert (
        await page.locator("#call-body dd:has(.gauge)").evaluate("place => place.scrollWidth - place.clientWidth") <= 0
    )


async def test_everything_can_be_done_with_the_keyboard_alone(visit: Visit, script: Script) -> None:
    page = await visit.open()
    await expect(page.locator("#ready")).to_have_text("ready")

    for _ in range(4):  # the skip link, the brand, Live, Playground
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#ask-model option")).to_have_count(1)
    reached = []
    while "ask-prompt" not in reached:
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.id"))
        assert len(reached) < 15
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    await page.keyboard.press("Control+Enter")

    await expect(page.locator(".turn.assistant")).to_have_text("In France.")
    assert outline == "solid"
    assert {"ask-model", "ask-temperature", "ask-system"} <= {*reached}


async def test_the_bar_that_is_shown_is_the_one_in_force(visit: Visit, gateway: Gateway) -> None:
    gateway.policies.insert(0, {"version": 1, "policy": "static", "threshold": 0.802})
    page = await visit.open("cache")

    await expect(page.locator("#cache-tiles")).to_contain_text("0.802bar, policy static")
    await expect(page.locator("#cache-plot")).to_contain_text("bar 0.802")

    gateway.policies.insert(0, {"version": 2, "policy": "settings", "threshold": 0.5})
    await expect(page.locator("#cache-tiles")).to_contain_text("0.95bar, policy static")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_fits_a_phone_and_can_be_read_in_the_light_and_in_the_dark(visit: Visit, scheme: str) -> None:
    await ask(port_of(visit), CHAT, chat(messages=[{"role": "user", "content": "averylongword" * 40}]))
    page = await visit.open()
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    for view in ("live", "playground", "cache", "spend", "status"):
        await page.click(f"nav a[href='#{view}']")
        await expect(page.locator(f"#{view} h1")).to_be_visible()
        width = await page.evaluate("document.documentElement.scrollWidth")
        faint = await page.evaluate(FAINT)
        assert (view, width, faint) == (view, 360, [])
    paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 22, 26)" if scheme == "dark" else "rgb(247, 246, 242)")


async def test_page_opens_no_connection_elsewhere_and_runs_nothing_inline(visit: Visit) -> None:
    for name in FILES:
        reply = await ask(port_of(visit), "/" if name == "index.html" else f"/page/{name}", method="GET")
        text = reply.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert reply.status == 200
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert not re.search(r"https?:|//[a-z]+\.[a-z]", text.replace('https:" ?', "")), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text)
    unknown = await ask(port_of(visit), "/page/../routes.py", method="GET")
    assert unknown.status == 404


FAINT = """() => {
  // Text whose contrast against what is behind it is under 4.5 (WCAG AA).
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgb(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (c) => [0, 1, 2].map((i) => c[i] / 255).map((v) => v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest(".skip, :disabled, svg, option")) continue;
    const under = behind(element), ink = over(rgb(getComputedStyle(element).color), under);
    const [a, b] = [light(ink), light(under)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(`${text.slice(0, 30)} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return faint;
}"""
