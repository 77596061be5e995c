"""test_report.py ZERORUN: opens pages of `zerorun report` in Chromium, at two widths, light and dark, and looks at what it shows."""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import browser
import logs

HERE = pathlib.Path(__file__).parent
LAYOUT = (HERE / "layout.js").read_text(encoding="utf-8")
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
SIZES = [(width, dark) for width in (1280, 400) for dark in (False, True)]


def report(*runs, output="report.html", check=True):
    """Writes a page; returns its path."""
    output = runs[0].parent / output
    done = subprocess.run([ZERORUN, "report", *runs, "--output", output], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(done.stderr)
    return output


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(browser.Browser())
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folder = folder
        logs.troubled(folder / "troubled")
        cls.troubled = report(folder / "troubled", output="troubled.html")

    def look(self, page, width, dark):
        """Opens a page with all tables; nothing may be wrong with it."""
        self.browser.open(page, width, dark=dark)
        closed = self.browser.run(LAYOUT)
        self.browser.run(OPEN_ALL)
        self.browser.settle()
        self.assertEqual(closed + self.browser.run(LAYOUT), [])
        self.browser.resize(400)
        self.assertEqual(self.browser.run(LAYOUT), [], "made narrow")
        self.assertEqual(self.browser.complaints(), [])

    def look_at_all(self, page):
        for width, dark in SIZES:
            with self.subTest(page=page.name, width=width, dark=dark):
                self.look(page, width, dark)

    def figures(self):
        """By id: the rows of its table, and how many pixels its canvas has."""
        return self.browser.run("""Object.fromEntries([...document.querySelectorAll('figure')].map((figure, place) => {
          const canvas = figure.querySelector('canvas');
          const image = canvas && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const pixels = image ? image.filter((x, i) => i % 4 === 3 && x).length : -1;
          return [figure.id || 'bars ' + place, {rows: figure.querySelectorAll('table tbody tr').length, pixels}];
        }))""")

    def test_a_run_with_troubles(self):
        self.look_at_all(self.troubled)
        figures = self.figures()
        names = ("loss", "norm", "lr", "scale", "tokens", "speed", "seconds", "memory", "sent")
        self.assertEqual(set(figures) - {"bars 7"}, {"figure-" + name for name in names})
        self.assertEqual(figures.pop("bars 7")["rows"], 5)
        for name, figure in figures.items():
            self.assertEqual(figure["rows"], 60, name)
            self.assertGreater(figure["pixels"], 200, name)
        text = self.browser.run("document.body.innerText")
        for expected in ("3 skipped steps: 1, 2, 41", "1 failure, 3 skipped steps", "rank 1 killed by signal 9 (SIGKILL): out of memory",
                         "infinite or NaN: step 20.", "infinite or NaN: step 30.", "line 6: auto, from the program's arguments",
                         "worker-0, worker-1", "Copyright (c) 2006", "The loss is infinite or NaN in 1 step that"):
            self.assertIn(expected, text)
        # The numbers of a table are those of the log.
        row = self.browser.run("[...document.querySelectorAll('#figure-loss tbody tr')][49].innerText.split('\\t')")
        self.assertEqual([int(row[0]), float(row[1])], [50, round(logs.loss_of(50), 6)])
        tokens = next(figure for figure in data_of(self.troubled)["figures"] if figure["id"] == "tokens")
        self.assertAlmostEqual(tokens["rows"][4][1], 8192 / (0.4 + 0.1 * math.sin(5)), delta=0.1)
        # Formula of stage 2 on 2 ranks with 400,000 parameters of 2 + 4 + 12 bytes; shared memory divides the parameters.
        bars = {bar["label"]: [round(value * 2 ** 20) for value in bar["values"]] for bar in data_of(self.troubled)["runs"][0]["bars"]}
        self.assertEqual(bars["stage 0, formula"], [800000, 1600000, 4800000, 0])
        self.assertEqual(bars["stage 2, formula"], [400000, 800000, 2400000, 0])
        self.assertEqual(bars["measured, step 6"], [400000, 800000, 2400000, 506000])
        sent = next(figure for figure in data_of(self.troubled)["figures"] if figure["id"] == "sent")
        self.assertEqual(dict(zip(sent["labels"], sent["rows"][0][1:])),
                         {"all_gather": 200128, "all_reduce": 22, "reduce_scatter": 200128, "all": 400278, "formula": 2 * 400000 / 2})

    def test_two_runs(self):
        logs.plain(self.folder / "a")
        logs.plain(self.folder / "b", parts_at=33, stage=3)
        page = report(self.folder / "a", self.folder / "b", output="ab.html")
        self.look_at_all(page)
        self.assertIn("They part at step 33.", self.browser.run("document.body.innerText"))
        said = subprocess.run([ZERORUN, "diff", self.folder / "a", self.folder / "b"], capture_output=True, text=True).stdout
        self.assertIn("they part at step 33", said)
        self.assertEqual(data_of(page)["comparison"]["text"], said)
        loss = next(figure for figure in data_of(page)["figures"] if figure["id"] == "loss")
        self.assertEqual(loss["labels"], ["A", "B"])
        self.assertEqual([row[0] for row in loss["rows"] if row[1] != row[2]], [*range(33, 61)])

    def test_runs_that_cannot_be_compared_are_shown(self):
        logs.plain(self.folder / "first")
        logs.plain(self.folder / "other", steps=30, name="another.weight")
        page = report(self.folder / "first", self.folder / "other", output="others.html")
        self.look(page, 400, True)
        text = self.browser.run("document.body.innerText")
        self.assertIn("They cannot be compared.", text)
        self.assertIn("the runs have different models", text)

    def test_a_step_of_the_timeline(self):
        for name, ranks in (("stepped", 2), ("stepped_by_many", 12)):
            archive = logs.timeline(self.folder / f"{name}.tar", ranks, text=logs.HOSTILE)
            logs.plain(self.folder / name, ranks=ranks, timeline=archive)
            page = report(self.folder / name, output=f"{name}.html")
            if ranks == 2:
                self.look_at_all(page)
            else:
                self.look(page, 400, False)
            self.assertIsNone(self.browser.run("window.broken"))
            shown = min(ranks, 8)
            step = data_of(page)["runs"][0]["step"]
            self.assertEqual([step["step"], step["of"], len(step["ranks"])], [60, ranks, shown])
            self.assertAlmostEqual(step["ms"], 100 + shown - 1)
            # Rank 1 begins 1 ms after rank 0, whose clock is 1,000 s ahead.
            self.assertEqual(step["ranks"][1]["tracks"][0], {"name": "engine", "spans": [[0, "forward", 1, 31], [0, "backward", 31, 81],
                                                                                       [0, "step", 81, 101], [1, "norm", 86, 91]]})
            self.assertEqual(self.figures()["figure-step"]["rows"], 7 * shown)
            # Boxes are as long as the spans: those of rank 0's engine, in parts of the lane.
            boxes = self.browser.run("""(() => {
              const lane = document.querySelector('#figure-step .lane'), whole = lane.getBoundingClientRect();
              return [...lane.children].map((one) => { const box = one.getBoundingClientRect();
                return [(box.left - whole.left) / whole.width, (box.right - whole.left) / whole.width, (box.top - whole.top) / 15]; });
            })()""")
            for box, (row, start, end) in zip(boxes, [(0, 0, 30), (0, 30, 80), (0, 80, 100), (1, 85, 90)], strict=True):
                for found, expected in zip(box, (start / step["ms"], end / step["ms"], row), strict=True):
                    self.assertAlmostEqual(found, expected, delta=0.01)

    def test_runs_without_a_whole_step_have_no_such_figure(self):
        archive = pathlib.Path(logs.timeline(self.folder / "odd.tar"))
        (self.folder / "odd.tar.ranks" / "rank0.json").write_text("{", encoding="utf-8")
        (self.folder / "odd.tar.ranks" / "rank1.json").write_text(json.dumps({"rank": 1, "world_size": 2, "step": None}), encoding="utf-8")
        spoilt = pathlib.Path(logs.timeline(self.folder / "spoilt.tar", ranks=1))
        facts = json.loads((self.folder / "spoilt.tar.ranks" / "rank0.json").read_text(encoding="utf-8"))
        facts["step"]["spans"][2] = ["engine", "row 0"]
        (self.folder / "spoilt.tar.ranks" / "rank0.json").write_text(json.dumps(facts), encoding="utf-8")
        logs.plain(self.folder / "spoilt", ranks=1, timeline=str(spoilt))
        self.assertIsNone(data_of(report(self.folder / "spoilt"))["runs"][0]["step"])
        for name, path in (("odd", str(archive)), ("missing", str(self.folder / "nothing.tar"))):
            logs.plain(self.folder / name, timeline=path)
            self.assertIsNone(data_of(report(self.folder / name, output=f"{name}.html"))["runs"][0]["step"])

    def test_names_and_errors_are_text(self):
        logs.troubled(self.folder / "hostile", logs.HOSTILE, logs.HOSTILE)
        page = report(self.folder / "hostile", output="hostile.html")
        self.look(page, 400, False)
        self.assertIsNone(self.browser.run("window.broken"))
        for where in ("#parameters", "#events"):
            self.assertIn(logs.HOSTILE, self.browser.run(f"document.querySelector('{where}').textContent"))

    def test_few_or_no_steps(self):
        run = logs.record(ranks=1, hosts=[])
        for name, lines in {"none": [], "one": [logs.step(1, 2.5)], "no_loss": [logs.step(number, None) for number in (1, 2, 3)]}.items():
            logs.write(self.folder / name, run, lines)
            self.look_at_all(report(self.folder / name, output=f"{name}.html"))
        self.assertIn("There is no loss in the log", self.browser.run("document.body.innerText"))

    def test_a_long_run_is_thinned(self):
        spike, broken = 12345, 23456
        odd = {spike: 9.75, broken: float("nan")}
        lines = [logs.step(number, odd.get(number, logs.loss_of(number))) for number in range(1, 30001)]
        logs.write(self.folder / "long", logs.record(), lines)
        page = report(self.folder / "long", output="long.html")
        self.assertLess(page.stat().st_size, 1_500_000)
        for figure in data_of(page)["figures"]:
            self.assertLessEqual(len(figure["rows"]), 2000, figure["id"])
            self.assertEqual([figure["rows"][0][0], figure["rows"][-1][0]], [1, 30000])
        rows = dict(data_of(page)["figures"][0]["rows"])
        self.assertEqual([rows[spike], rows[broken]], [9.75, "nan"])
        losses = [line["loss"] for line in lines if isinstance(line["loss"], float)]
        self.assertAlmostEqual(min(value for value in rows.values() if value != "nan"), min(losses), 6)
        self.browser.open(page, 1280)
        self.assertEqual(self.browser.run(LAYOUT), [])

    def test_a_drag_zooms_all_figures_and_the_mouse_reads_values(self):
        self.browser.open(self.troubled, 1280)
        ticks = "[...document.querySelectorAll('#figure-lr .dygraph-axis-label-x')].map((one) => one.innerText)"
        before = self.browser.run(ticks)
        box = self.browser.run("Object.values(document.querySelector('#figure-loss .graph').getBoundingClientRect().toJSON()).slice(0, 2)")
        if box[1] > 700:
            self.browser.run(f"window.scrollTo(0, {box[1] - 100})")
            box[1] = 100
        self.browser.mouse("mouseMoved", box[0] + 200, box[1] + 80)
        legend = self.browser.run("document.querySelector('#figure-loss .legend').innerText")
        self.assertRegex(legend, r"loss\s+[\d.]+\s*step \d+")
        self.browser.mouse("mousePressed", box[0] + 200, box[1] + 80, buttons=1)
        self.browser.mouse("mouseMoved", box[0] + 260, box[1] + 84, buttons=1)
        self.browser.mouse("mouseReleased", box[0] + 260, box[1] + 84)
        self.browser.settle()
        self.assertNotEqual(self.browser.run(ticks), before)
        self.assertEqual(self.browser.complaints(), [])

    def test_what_is_wrong_is_found(self):
        """The checks of this test can fail."""
        faults = {
            "document.querySelector('h1').style = 'width: 2000px'": "the page is 20",
            "document.querySelector('h1').style = 'margin-bottom: -25px'": "overlap: \"Run report\"",
            "document.querySelector('h1').style = 'width: 40px; overflow: hidden; white-space: nowrap'": "cut: \"Run report\"",
            "document.querySelector('h1').style = 'color: #bbb'": "contrast",
        }
        for script, expected in faults.items():
            self.browser.open(self.troubled, 1280)
            self.browser.run(f"void ({script})")
            self.assertTrue(any(problem.startswith(expected) for problem in self.browser.run(LAYOUT)), expected)
        for script, expected in {"console.error('it is broken')": "console", "setTimeout(() => missing())": "exception",
                                 "document.body.append(Object.assign(new Image(), {src: 'http://example.org/a.png'}))": "log"}.items():
            self.browser.open(self.troubled, 1280)
            self.browser.run(f"void ({script})")
            self.browser.run("new Promise((done) => setTimeout(done, 50))")
            self.assertTrue(any(found.startswith(expected) for found in self.browser.complaints()), expected)


if __name__ == "__main__":
    if not browser.find():
        print("skipped: no chromium here (scripts/setup --browser installs it)")
        sys.exit(77)
    ZERORUN = pathlib.Path(sys.argv.pop(1)).resolve()
    if "without dygraphs" in subprocess.run([ZERORUN, "report", "none"], capture_output=True, text=True).stderr:
        print("skipped: this zerorun was built without dygraphs")
        sys.exit(77)
    unittest.main(verbosity=2)
