"""The report page in headless Chromium: light, dark, and on a phone."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import recorded
import tensorflow as tf

from keras_qpsbgd.report import render

BROWSER = next(
    filter(
        None,
        map(shutil.which, ("chromium", "chromium-browser", "google-chrome")),
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium"),
]
WIDTH, PHONE = 1200, 390


def chromium(page, *options):
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return done.stdout.decode()


def picture(page, width, height, *options):
    """Returns a screenshot as an array (height, width, 3) from 0 to 1."""
    path = page.with_suffix(".png")
    size = f"--window-size={width},{height}"
    chromium(page, size, f"--screenshot={path}", *options)
    return tf.io.decode_png(path.read_bytes(), channels=3).numpy() / 255


# A window cannot be as narrow as a phone, so the page is in a frame.
FRAME = """<!doctype html><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:800px"
  srcdoc="{page}"></iframe>
<script>
document.getElementById("frame").onload = function () {{
  const root = this.contentDocument.documentElement;
  const inner = this.contentWindow.innerWidth;
  const boxes = [...root.querySelectorAll("figure > svg")].map(drawing => {{
    const box = drawing.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom];
  }});
  const wide = [...root.querySelectorAll("body *")].filter(element =>
    !element.closest(".scroll table") && !element.closest("svg > *") &&
    element.getBoundingClientRect().right > inner + 0.5);
  const found = {{
    inner: inner, width: root.scrollWidth, height: root.scrollHeight,
    boxes: boxes, wide: wide.map(element => element.outerHTML.slice(0, 80)),
    font: Math.min(...boxes.map(box => 11 * (box[2] - box[0]) / 360)),
  }};
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
}};
</script>"""


def measure(source, folder, width):
    """Returns the layout of a page in a frame of this width."""
    page = folder / f"frame-{width}.html"
    page.write_text(
        FRAME.format(width=width, page=html.escape(source)), encoding="utf-8"
    )
    dom = chromium(page, "--dump-dom", "--virtual-time-budget=3000")
    found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def source():
    run = recorded.make_run(60, layers=("a_long_name_" * 8, "output"))
    run.settings["optimizer"]["path"] = "long" * 60
    return render(run, "name_of_a_file" * 6)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colors_and_charts(mode, source, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(source, encoding="utf-8")
    layout = measure(source, tmp_path, WIDTH)
    height = int(layout["height"])
    options = ["--force-dark-mode"] if mode == "dark" else []
    shot = picture(page, WIDTH, height, *options)
    assert shot.shape[:2] == (height, WIDTH)
    gray = shot.mean(axis=2)
    share = (gray > 0.85).mean() if mode == "light" else (gray < 0.2).mean()
    assert share > 0.85, share
    assert len(layout["boxes"]) == 3 + 2 * 5
    for left, top, right, bottom in np.round(layout["boxes"]).astype(int):
        chart = shot[top:bottom, left:right]
        background = chart[0, 0]
        colored = np.ptp(chart, axis=2) > 0.25  # neither text nor grid
        drawn = np.abs(chart - background).max(axis=2) > 0.1
        assert colored.mean() > 0.001, (left, top)
        # The curve reaches from one side of the chart to the other.
        columns = np.flatnonzero(colored.any(axis=0))
        assert np.ptp(columns) > 0.4 * (right - left), (left, top)
        assert 0.005 < drawn.mean() < 0.9


@pytest.mark.parametrize("width", [PHONE, 320, 768])
def test_narrow_screens_do_not_scroll_sideways(width, source, tmp_path):
    layout = measure(source, tmp_path, width)
    assert layout["inner"] == width
    assert layout["width"] <= width
    assert not layout["wide"]
    assert len(layout["boxes"]) == 3 + 2 * 5
    if width == PHONE:
        assert layout["font"] > 9  # text in charts stays readable


def test_the_measurement_finds_an_overflow(source, tmp_path):
    broken = source.replace("<main>", '<main><p style="width:700px">x</p>')
    assert measure(broken, tmp_path, PHONE)["width"] >= 700
