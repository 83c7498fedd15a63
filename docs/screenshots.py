"""Screenshots of a report at desktop and phone width, light and dark, with Debian's Chromium.

python docs/screenshots.py runs/mnist-shards/report.html docs/report
writes docs/report-desktop-light.png, -desktop-dark.png, -phone-light.png and -phone-dark.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
WIDTHS = {"desktop": (1280, 1), "phone": (360, 2)}
TALLEST = 1490
"""CSS pixels of the page that are kept: the headline, curves, scores."""


def shoot(page_file: Path, stem: Path) -> None:
    """All four."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        for name, (width, scale) in WIDTHS.items():
            for theme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 800}, device_scale_factor=scale, color_scheme=theme)
                page.goto(page_file.resolve().as_uri())
                page.wait_for_selector("html[data-ready=yes]")
                page.wait_for_timeout(400)
                path = stem.with_name(f"{stem.name}-{name}-{theme}.png")
                height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
                page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
                Image.open(path).convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
                print(path, path.stat().st_size)
                page.close()
        browser.close()


if __name__ == "__main__":
    shoot(Path(sys.argv[1]), Path(sys.argv[2]))
