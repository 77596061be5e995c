"""Takes a picture of a page of `zerorun report`: of the file PAGE, or, if that is the program zerorun, of an example."""

import argparse
import json
import pathlib
import subprocess
import tempfile

import browser
import logs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("page", type=pathlib.Path)
parser.add_argument("png")
parser.add_argument("--width", type=int, default=1280)
parser.add_argument("--height", type=int, help="default: the whole page")
parser.add_argument("--dark", action="store_true")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder, browser.Browser() as chromium:
    page = options.page.resolve()
    if page.suffix != ".html":
        logs.troubled(pathlib.Path(folder) / "runs/a")
        logs.timeline(pathlib.Path(folder) / "runs/timeline.tar")
        record = json.loads((pathlib.Path(folder) / "runs/a/run.json").read_text(encoding="utf-8"))
        record["timeline"] = str(pathlib.Path(folder) / "runs/timeline.tar")
        (pathlib.Path(folder) / "runs/a/run.json").write_text(json.dumps(record), encoding="utf-8")
        subprocess.run([page, "report", "runs/a"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        page = pathlib.Path(folder) / "report.html"
    chromium.open(page, options.width, dark=options.dark)
    chromium.screenshot(options.png, height=options.height)
