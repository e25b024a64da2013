"""The course in a real JupyterLab, driven by menus and keys as a person would; screenshots go to screenshots/.

Needs Debian's chromium (`apt-get install chromium fonts-nanum`) and playwright; skipped with a reason where they are
missing. Leave them out with `-m "not browser"`.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from onegpu.notebooks import from_text
from onegpu.notebooks.execution import execute, stabilise
from onegpu.notebooks.files import write
from onegpu.notebooks.parts import METADATA

ROOT = Path(__file__).resolve().parents[1]
SHOTS = ROOT / "screenshots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 240_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium fonts-nanum"),
    pytest.mark.timeout(600),
]
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")

# The kernel's status flickers idle -> unknown -> idle while it connects, and Run All is dropped in between.
READY = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext;
  const kernel = session && session.session && session.session.kernel;
  if (!(session && session.isReady && kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle')) {
    window.idleSince = 0; return false; }
  window.idleSince = window.idleSince || Date.now();
  return Date.now() - window.idleSince > 500; }"""
DONE = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const cells = panel.content.widgets.filter(c => c.model.type === 'code' && c.model.sharedModel.source.trim());
  return cells.length > 0 && panel.sessionContext.session.kernel.status === 'idle'
    && cells.every(c => c.model.executionCount !== null && c.model.executionState !== 'running'); }"""
OUTPUTS = (
    "() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells.flatMap(c => c.outputs || [])"
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab on a copy of the notebooks (it saves what it runs), with settings of its own."""
    home = tmp_path_factory.mktemp("jupyterlab")
    for folder in ("course", "labs"):
        shutil.copytree(ROOT / folder, home / "files" / folder, ignore=shutil.ignore_patterns("runs", ".*"))
    asking = from_text(REVEAL)
    asking.metadata.update(METADATA)  # or JupyterLab asks for a kernel
    write(home / "files" / "reveal.ipynb", asking)
    exploring = from_text(EXPLORERS)
    exploring.metadata.update(METADATA)
    write(home / "files" / "explorers.ipynb", exploring)
    talking = from_text(TALKING)
    talking.metadata.update(METADATA)
    write(home / "files" / "talking.ipynb", talking)
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    port = free_port()
    env = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={home / 'files'}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    log = (home / "log").open("w")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=1)
                break
            except OSError:
                time.sleep(0.25)
        else:
            pytest.fail("JupyterLab didn't start:\n" + (home / "log").read_text()[-2000:])
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        log.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


def run_all(browser, server, place):
    """Open a notebook, Run > Run All Cells, wait for the end; return the page and all outputs."""
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{server}/lab/tree/{place}?reset")
    page.wait_for_function(READY)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(DONE)
    return page, page.evaluate(OUTPUTS)


def shot(page, name):
    SHOTS.mkdir(exist_ok=True)
    page.wait_for_timeout(500)
    page.screenshot(path=SHOTS / f"{name}.png")


def scroll_to(page, text):
    """Bring the cell with this text to the top of the window."""
    page.evaluate(
        """text => { const c = window.jupyterapp.shell.currentWidget.content;
        const i = c.widgets.findIndex(w => w.model.sharedModel.source.includes(text));
        c.activeCellIndex = i; return c.scrollToItem(i, 'start'); }""",
        text,
    )
    page.wait_for_timeout(700)


def printed(outputs):
    return "".join(
        out["text"] for out in outputs if out["output_type"] == "stream" and out["name"] == "stdout"
    )


def stderr(outputs):
    return [out["text"] for out in outputs if out["output_type"] == "stream" and out["name"] == "stderr"]


def test_start_here_runs_and_its_slider_moves_by_keyboard(browser, server):
    page, outputs = run_all(browser, server, "course/00_start_here.ipynb")
    errors = [out for out in outputs if out["output_type"] == "error"]
    assert [error["ename"] for error in errors] == ["WrongAnswer"]  # the one that it shows on purpose
    assert errors[0]["traceback"][0].startswith("✘ 0.1")
    assert "site-packages" not in "".join(errors[0]["traceback"])
    assert not stderr(outputs)
    assert "○ 0.1" in printed(outputs)
    assert "✔ 0.1" in printed(outputs)
    scroll_to(page, "# Start here")
    shot(page, "00_top")
    scroll_to(page, "def weights_bytes")
    shot(page, "00_checks")

    scroll_to(page, "weights_explorer")
    picture = page.locator(".widget-html img").first
    picture.wait_for()
    alt, source = picture.get_attribute("alt"), picture.get_attribute("src")
    assert "7 billion parameters take 13.04 GiB in 16 bits" in alt
    shot(page, "00_widget_before")
    page.locator("[role=slider]").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => { const i = document.querySelector('.widget-html img');"
        " return i && i.src !== before && i.alt.startsWith('The weights of 10 billion'); }",
        arg=source,
    )
    assert "billion parameters = 10" in page.locator(".widget-html p[aria-live]").first.inner_text()
    field = page.get_by_label("billion parameters")
    field.fill("20")
    field.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.widget-html img')?.alt.startsWith('The weights of 20 billion')"
    )
    shot(page, "00_widget_after")
    page.close()


def test_a_fresh_lab_runs_to_its_end_without_an_error(browser, server):
    from onegpu.exercises import exercises_of

    page, outputs = run_all(browser, server, "labs/01_sft_datasets.ipynb")
    assert [out for out in outputs if out["output_type"] == "error"] == []
    assert not stderr(outputs)
    for exercise in exercises_of(1):
        assert f"○ {exercise.number} {exercise.title}: not attempted" in printed(outputs)
    scroll_to(page, "# Lab 01")
    shot(page, "01_lab_top")
    scroll_to(page, 'check("1.1"')
    shot(page, "01_lab_check")
    page.close()


REVEAL = """# Questions

```python
from onegpu import plots
from onegpu.widgets import reveal

chart = plots.captioned(plots.bars("A", "GiB", {"x": 1.0}), "The only bar is one GiB high.")
reveal("How many codes?", 18, chart, unit="codes", why="A step is `0.47`.")
```

```python
reveal("How large is the error?", 1 / 7.24)
```
"""
CONTRAST = """element => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3)
    .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  let behind = element;
  while (/rgba\\(.*, 0\\)|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }"""


def test_a_question_is_answered_by_mouse_by_keyboard_and_in_the_dark(browser, server):
    page, outputs = run_all(browser, server, "reveal.ipynb")
    page.set_default_timeout(20_000)
    assert [out for out in outputs if out["output_type"] == "error"] == []
    assert not stderr(outputs)
    assert page.get_by_text("18 codes").count() == 0

    page.get_by_label("your guess").first.fill("200")
    page.get_by_role("button", name="Show the answer").first.click()
    page.get_by_text("You said 200, it is 18 codes.").wait_for()
    assert page.get_by_alt_text("The only bar is one GiB high.").is_visible()

    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    page.get_by_label("your guess").nth(1).focus()
    page.keyboard.type("0.5")
    page.keyboard.press("Enter")
    said = page.get_by_text("You said 0.5, it is 0.138.")
    said.wait_for()
    assert said.evaluate(CONTRAST) > 7
    assert page.get_by_text("How large is the error?").last.evaluate(CONTRAST) > 7
    shot(page, "reveal_dark")
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})"
    )
    page.close()


EXPLORERS = """# Explorers

```python
from onegpu import widgets

widgets.dtype_sizing.bit_explorer(0.1, "bf16")
```

```python
widgets.dtype_sizing.what_fits()
```

```python
widgets.preference_data.ranking_explorer()
```
"""


def test_a_list_is_chosen_from_by_keyboard_and_bits_are_legible_in_the_dark(browser, server):
    page, outputs = run_all(browser, server, "explorers.ipynb")
    page.set_default_timeout(20_000)
    assert [out for out in outputs if out["output_type"] == "error"] == []
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    page.wait_for_timeout(500)
    assert "0.1 is stored in bf16" in page.locator(".widget-html p[aria-live]").first.inner_text()
    bits = page.locator("button[title*='press to flip']")
    assert bits.count() == 16
    for bit in (bits.nth(0), bits.nth(1), bits.nth(15)):
        assert bit.evaluate(CONTRAST) > 4.5
    for cell in page.locator("table[aria-label=bits] td").all():
        assert cell.evaluate(CONTRAST) > 4.5
    assert page.get_by_text("of the room").evaluate("e => getComputedStyle(e).paddingLeft") == "12px"
    shot(page, "explorers_dark")

    page.get_by_label("format").first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_text("0.1 is stored in fp16").wait_for()
    shot(page, "explorers_chosen")
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})"
    )
    page.close()


TALKING = """# Talking

```python
import time

from onegpu import widgets
from onegpu.chat import TransformersSpeaker
from onegpu.models import tiny_model, tiny_tokenizer

model = tiny_model()
tokenizer = tiny_tokenizer()
stop = tokenizer.eos_token_id
words = tokenizer("All is well, and it will be there on Monday.", add_special_tokens=False)["input_ids"]


def saying(input_ids, **rest):
    said = [*words, stop]
    for token in said:
        rest["streamer"].put(input_ids.new_tensor([token]))
        time.sleep(0.1)
    rest["streamer"].end()
    return input_ids.new_tensor([input_ids[0].tolist() + said])


model.generate = lambda input_ids, streamer, **rest: (streamer.put(input_ids), saying(input_ids, streamer=streamer))[1]
widgets.chat(TransformersSpeaker(model, tokenizer, "tuned"), suggestion="Where is my parcel?")
```
"""
ANSWER = "All is well, and it will be there on Monday."


def test_a_model_is_talked_to_by_keyboard_in_the_dark_and_its_answer_grows(browser, server):
    page, outputs = run_all(browser, server, "talking.ipynb")
    page.set_default_timeout(60_000)
    log = page.get_by_role("log")
    assert [out for out in outputs if out["output_type"] == "error"] == []
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    field = page.get_by_label("your message")
    field.focus()
    page.keyboard.press("Enter")
    log.get_by_text("Where is my parcel?").wait_for()
    page.wait_for_function(  # it comes piece by piece
        "() => /tuned: All(?!.*Monday)/.test(document.querySelector('[role=log]').innerText)"
    )
    log.get_by_text(ANSWER).wait_for()
    assert "<|im_end|>" not in log.inner_text()
    assert field.input_value() == ""
    assert field.evaluate("e => document.activeElement === e")

    page.keyboard.type("And the mug?", delay=5)
    page.keyboard.press("Enter")
    log.get_by_text("And the mug?").wait_for()
    page.wait_for_function(
        "() => document.querySelector('[role=log]').innerText.split('Monday.').length === 3"
    )
    assert field.evaluate("e => document.activeElement === e")
    for paragraph in log.locator("p").all():
        assert paragraph.evaluate(CONTRAST) > 7
    assert log.get_attribute("aria-label") == "conversation with tuned"
    shot(page, "chat_dark")
    page.get_by_role("button", name="New conversation").click()
    log.get_by_text("And the mug?").wait_for(state="detached")
    assert field.evaluate("e => document.activeElement === e")
    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})"
    )
    page.close()


def test_a_stored_question_is_folded_and_opens_by_key(browser, tmp_path):
    from nbconvert import HTMLExporter

    notebook = from_text(REVEAL)
    assert execute(notebook, tmp_path, 120) == ""
    stabilise(notebook, tmp_path)
    (tmp_path / "reveal.html").write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "reveal.html").as_uri(), wait_until="domcontentloaded")
    picture = page.get_by_alt_text("The only bar is one GiB high.")
    assert not picture.is_visible()
    page.locator("summary").first.focus()
    page.keyboard.press("Space")
    picture.wait_for(state="visible")
    assert page.get_by_text("18 codes").is_visible()
    assert not page.get_by_text("0.138").is_visible()
    page.get_by_text("How large is the error?").last.click()
    page.get_by_text("0.138").wait_for(state="visible")
    shot(page, "reveal_stored")
    page.close()
