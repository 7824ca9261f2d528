"""Draw docs/images/web-ui.png: the web UI in Chromium, with an answer of a model.

    python tests/making/make_web_ui_screenshot.py qwen2.5-coder-1.5b
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("", "harness"))
from server_process import ServerProcess
from web_page import ask, set_fields

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "web-ui.png"
SIZE = {"width": 1000, "height": 900}  # pixels
COLORS = 256  # of the palette
PATIENCE = 300_000  # milliseconds
QUESTIONS = (
    "What is a prime number? Answer in one sentence.",
    "Compare trial division and the sieve of Eratosthenes in a small Markdown table. Then write is_prime in Python.",
)


def main() -> None:
    [model] = sys.argv[1:]
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with ServerProcess(model, "--temp", "0", "-c", "4096") as server, sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(PATIENCE)
        page.goto(server.url)
        page.wait_for_selector("#model option", state="attached")
        set_fields(page, max_tokens=600)
        for question in QUESTIONS:
            page.click("#new")
            ask(page, question)
        page.wait_for_selector(".hljs-keyword")
        page.evaluate("document.querySelector('main').scrollTop = 0")
        picture = Image.open(io.BytesIO(page.screenshot()))
        window.close()
    picture.convert("RGB").quantize(COLORS).save(IMAGE, optimize=True)
    print(f"{IMAGE}: {IMAGE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
