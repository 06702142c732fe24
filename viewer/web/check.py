#!/usr/bin/env python3
"""Opens the viewer's page in headless Chromium, clicks, runs scenarios, drops and chooses files, moves a slider; measures, and takes pictures.

    pip install playwright
    viewer/web/check.py target/servetwin-web [PICTURES]         # the folder, as any static server hands it out: here Python's own
    viewer/web/check.py target/release/servetwin [PICTURES]     # what `servetwin view --web` serves

Needs Chromium (Debian: chromium). Ends with 1 where something is not as it should be.
"""

import functools
import gzip
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request

from playwright.sync_api import sync_playwright

SCENARIO = """
name = "two thousand requests"
[layout]
replicas = 2
[engine]
kind = "vllm_v1"
kv_blocks = 4000
max_num_seqs = 64
[step]
base = "5 ms"
per_token = "20 us"
[[workload]]
prompt = 200
output = { kind = "uniform", min = 10, max = 60 }
arrival = { kind = "poisson", rate = "40 req/s" }
[run]
requests = 2000
[slo]
ttft = "200 ms"
"""

# Software rendering: no GPU is asked for.
FLAGS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
SIZE = {"width": 1280, "height": 720}
MOST_BYTES = 8_000_000
MOST_FIRST_MS = 3000
MOST_SLIDER_MS = 150

# Notes when the pointer is pressed, when the worker that runs scenarios answers, and when frames are painted: what comes after the answer is
# the page's own work, and the painting.
ANSWERS = """
window.answers = [];
window.frames = [];
window.pressed = [];
addEventListener("pointerdown", e => window.pressed.push(e.timeStamp), true);
const clear = WebGL2RenderingContext.prototype.clear;
WebGL2RenderingContext.prototype.clear = function(...given) { window.frames.push(performance.now()); return clear.apply(this, given); };
window.Worker = class extends window.Worker {
    constructor(...given) {
        super(...given);
        this.addEventListener("message", e => e.data instanceof Uint8Array && window.answers.push(performance.now()));
    }
};
"""

failures = []


def check(what, value, most, unit):
    good = value <= most
    print(f"{'ok  ' if good else 'FAIL'} {what}: {value:.0f} {unit} (at most {most})")
    if not good:
        failures.append(what)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def serve_folder(folder):
    handler = functools.partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def serve(what, folder):
    """Address of the page, and where two.toml is for it; `what` is a folder or the program."""
    if what.is_dir():
        shutil.copytree(what, folder, dirs_exist_ok=True)
        return serve_folder(str(folder)), "two.toml", lambda: None
    program = subprocess.Popen([what, "view", "--web", folder / "two.toml"], stdout=subprocess.PIPE, text=True)
    address, _, query = program.stdout.readline().strip().partition("/?")
    if not address:
        sys.exit(f"{what} view --web does not serve the page")
    return address, query.removeprefix("file="), program.terminate


def downloaded(address):
    """What a browser gets of the page [bytes]; what comes as it is counts as the server could squeeze it."""
    size = 0
    for name in ["viewer_bg.wasm", "viewer.js", "", "worker.js"]:
        request = urllib.request.Request(f"{address}/{name}", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as answer:
            body = answer.read()
            size += len(body if answer.headers["Content-Encoding"] else gzip.compress(body))
    return size


def marks(page, name):
    script = "n => performance.getEntriesByType('mark').filter(m => m.name.startsWith(n)).map(m => m.startTime)"
    return page.evaluate(script, name)


def wait(page, name, n=1, timeout_ms=60_000):
    script = "([m, n]) => performance.getEntriesByType('mark').filter(x => x.name.startsWith(m)).length >= n"
    page.wait_for_function(script, arg=[name, n], timeout=timeout_ms, polling=20)
    return marks(page, name)[n - 1]


def main():
    what = pathlib.Path(sys.argv[1])
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "two.toml").write_text(SCENARIO)
    address, two, stop = serve(what, folder)
    check("download, compressed", downloaded(address), MOST_BYTES, "bytes")

    def picture(page, name):
        page.wait_for_timeout(400)
        if pictures:
            page.screenshot(path=str(pictures / f"viewer-web-{name}.png"))

    busy = os.getloadavg()[0]
    print(f"     {os.cpu_count()} cores, load before {busy:.1f}: on a busy machine the times are those of the machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)

        def opened(query):
            page = browser.new_page(viewport=SIZE)
            page.add_init_script(ANSWERS)
            page.on("pageerror", lambda e: failures.append(f"page error: {e}"))
            page.on("console", lambda m: m.type == "error" and failures.append(f"console: {m.text}"))
            page.goto(address + query)
            return page

        page = opened("/")
        check("first picture, cold", wait(page, "servetwin: first frame"), MOST_FIRST_MS, "ms")
        page.wait_for_timeout(1000)
        # The first card: one click, and its run is a picture.
        page.mouse.click(200, 200)
        # The first title is the application's own.
        wait(page, "servetwin: shows ", 2, timeout_ms=120_000)
        print(f"ok   a click ran {page.title()}")
        picture(page, "timeline")
        page.keyboard.press("w")
        page.mouse.move(400, 160)
        page.mouse.wheel(0, -400)
        page.close()

        page = opened(f"/?file={two}&pane=what-if")
        wait(page, "servetwin: shows two thousand")
        page.wait_for_timeout(1500)
        # The first slider, the request rate: a click moves it there.
        answers, calls, runs, frames = [], [], [], []
        for i in range(12):
            x = 900 + 5 * i
            called = page.evaluate("performance.now()")
            page.mouse.click(x, int(os.environ.get("SLIDER_Y", "73")))
            answered = wait(page, "servetwin: what-if answered", i + 1)
            asked = max(page.evaluate("window.pressed"))
            answers.append(answered - asked)
            calls.append(answered - called)
            runs.append(max(page.evaluate("window.answers")) - asked)
            frames.append(len([f for f in page.evaluate("window.frames") if asked < f < answered]))
            # As somebody moves it who looks at what comes.
            page.wait_for_timeout(500)
        print("     slider answers [ms]:", [round(a) for a in answers])
        print("     of that until the run had answered [ms]:", [round(r) for r in runs], "; the rest is decoding and painting, in software here")
        print("     from before this script moved the pointer there [ms]:", [round(c) for c in calls])
        print("     frames painted from the press to the answer:", frames)
        check("slider over 2000 requests, median", sorted(answers)[len(answers) // 2], MOST_SLIDER_MS, "ms")
        picture(page, "what-if")
        page.close()

        # What is dropped or chosen is opened, and saved as a download.
        page = opened("/")
        wait(page, "servetwin: first frame")
        drop = """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "dropped.toml"));
            const canvas = document.querySelector("canvas");
            for (const kind of ["dragover", "drop"])
                canvas.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
        page.evaluate(drop, SCENARIO.replace("two thousand requests", "dropped"))
        wait(page, "servetwin: shows dropped")
        print("ok   a dropped scenario ran")
        page.wait_for_timeout(1000)
        with page.expect_download() as download:
            page.keyboard.press("Control+p")
            page.wait_for_timeout(600)
            page.keyboard.type("save the record")
            page.wait_for_timeout(600)
            page.keyboard.press("Enter")
        record = folder / "saved.servetwin"
        download.value.save_as(str(record))
        print(f"ok   its record was saved: {record.stat().st_size} bytes")
        page.close()
        page = opened("/")
        wait(page, "servetwin: first frame")
        page.wait_for_timeout(1000)
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Control+o")
        chooser.value.set_files(str(record))
        wait(page, "servetwin: shows dropped")
        print("ok   the record was chosen and opened")
        page.close()

        page = opened("/?file=https://example.com/x.servetwin")
        wait(page, "servetwin: first frame")
        page.wait_for_timeout(1000)
        page.close()
        browser.close()
    stop()
    for failure in failures:
        print("FAIL", failure)
    sys.exit(1 if failures else 0)


main()
