"""The page of a study in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from logging_layer.tuning import Prices, Scored
from logging_layer.tuning.page import page_of
from logging_layer.tuning.report import report_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

OVERHANGING = """[...document.querySelectorAll("figure")].flatMap((figure) => {
  const edge = figure.getBoundingClientRect();
  const isOut = (place) => place.left < edge.left || place.right > edge.right;
  const texts = [...figure.querySelectorAll("text")];
  return texts.filter((text) => isOut(text.getBoundingClientRect())).map((text) => text.textContent);
})"""


def study_page() -> str:
    """Write the page of 400 requests, more of them wrong the less similar they are."""
    rows = [Scored(0.8 + n / 2000, n % 10 > 3 or n > 200) for n in range(400)]
    bars = [0.5 + step / 1000 for step in range(501)]
    return page_of(report_on(rows, dataset="rows", thresholds=bars, prices=Prices(wrong_usd=0.004)))


async def test_sliders_say_what_they_stand_for_as_they_are_moved(browser: Browser) -> None:
    page = await browser.new_page()
    await page.set_content(study_page())
    before = await page.inner_text("#bar-label")

    for slider in ("price", "bar"):
        await page.focus(f"#{slider}")
        await page.keyboard.press("ArrowRight")
        said = await page.inner_text(f"#{slider}-label")
        await expect(page.locator(f"#{slider}")).to_have_attribute("aria-valuetext", said)
    assert await page.inner_text("#bar-label") != before
    await page.close()


@pytest.mark.parametrize("width", [1280, 390])
async def test_no_figure_hangs_over_its_card(browser: Browser, width: int) -> None:
    page = await browser.new_page(viewport={"width": width, "height": 900})
    await page.set_content(study_page())

    assert await page.evaluate(OVERHANGING) == []
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    await page.close()
