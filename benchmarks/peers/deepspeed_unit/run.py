"""Runs DeepSpeed's unit tests under DeepSpeed or under ZeroRun's package that poses as it.

  python3 run.py collect --tests FOLDER --python PYTHON             # writes cases.tsv; PYTHON has DeepSpeed
  python3 run.py run --tests FOLDER --python PYTHON --out RESULTS.tsv [--cases TEXT...] [--passed RESULTS.tsv]
  python3 run.py summary --passed DEEPSPEED.tsv --results ZERORUN.tsv      # counts, and reasons.tsv's reasons

FOLDER is DeepSpeed's folder tests (conftest.py, pytest.ini, unit) of the release that PYTHON's environment has, without
the package beside it; it is also read from DEEPSPEED_TESTS. `run` takes the cases that cases.tsv keeps. Each file of
tests is one process, in which the cases run one after another on the ranks that they start themselves, on CPUs; after
a case that does not end, the rest of its file goes on in a new process. Cases that RESULTS.tsv has are not run again.

This program contains nothing of those tests, and they are not part of this repository.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import cases

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "cases.tsv"
# What trains with ZeRO, its schedules, precisions and checkpoints.
SCOPE = ["unit/v1/zero", "unit/runtime/test_lr_schedulers.py", "unit/checkpoint", "unit/runtime/zero",
         "unit/runtime/half_precision", "unit/v1/half_precision", "unit/runtime/test_no_sync_ctxt.py"]
RANKS = 4  # as many devices as the tests believe to have
SECONDS_OF_A_CASE = 60  # for each number of ranks that a case has; a case may have two
COLUMNS = ["id", "result", "seconds", "message", "commit"]


def environment(tests, limit=SECONDS_OF_A_CASE, **more):
    return dict(os.environ, PYTHONPATH=os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(tests),
                                                        str(HERE)]).strip(os.pathsep),
                DS_ACCELERATOR="cpu", LOCAL_SIZE=str(RANKS), DS_UNITTEST_TIMEOUT=str(limit), ZERORUN_TIMEOUT=str(limit // 2),
                OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONHASHSEED="0", **more)


def pytest(python, *arguments):
    return [python, "-P", "-m", "pytest", "-p", "in_pytest", "-p", "no:cacheprovider", "-q", *arguments]


def write_table(path, columns, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, dialect="excel-tab", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, dialect="excel-tab"))


def collect(options):
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "cases.json"
        done = subprocess.run(pytest(options.python, "--collect-only", *SCOPE), cwd=options.tests, check=False,
                              env=environment(options.tests, ZERORUN_UNIT_COLLECT=str(found)), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"pytest does not collect the cases:\n{done.stdout[-4000:]}")
        collected = json.loads(found.read_text())
    rows = [{"id": case["id"], "left_out_by": f"{pattern.kind}: {pattern.name}" if pattern else ""}
            for case, pattern in cases.select(collected, options.tests, cases.read_patterns())]
    write_table(CASES, ["id", "left_out_by"], rows)
    counts = {}
    for row in rows:
        counts[row["left_out_by"]] = counts.get(row["left_out_by"], 0) + 1
    print(f"{len(rows)} collected, {counts.pop('', 0)} stay")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:5}  {name}")


class Run:
    """One file of tests: its process, and what the plugin says of the cases."""

    def __init__(self, options, file, ids):
        self.options, self.file, self.ids = options, file, ids

    def results(self):
        """Yields a row for each case."""
        left = list(self.ids)
        while left:
            before = len(left)
            for row in self._process(left):
                left.remove(row["id"])
                yield row
            if len(left) == before:
                for case in left:  # the file cannot be imported, or the process ended before its first case
                    yield {"id": case, "result": "failed", "seconds": "0", "message": one_line(self.tail)}
                return

    def _process(self, ids):
        log = pathlib.Path(self.options.log) / (self.file.replace("/", "_") + ".log")
        with tempfile.TemporaryDirectory() as folder, open(log, "a") as output:
            chosen, events = pathlib.Path(folder) / "ids", pathlib.Path(folder) / "events"
            chosen.write_text("\n".join(ids))
            events.touch()
            start = output.tell()
            process = subprocess.Popen(
                ["nice", "-n", str(self.options.nice), *pytest(self.options.python, "--basetemp", f"{folder}/tmp", self.file)],
                cwd=self.options.tests, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self.options.tests, self.options.limit, ZERORUN_UNIT_CASES=str(chosen), ZERORUN_UNIT_EVENTS=str(events)))
            try:
                yield from self._follow(process, events)
            finally:
                end_session(process)
                remove_shared_memory()
            self.tail = log.read_text()[start:][-1500:]

    def _follow(self, process, events):
        running, phases, last = None, [], time.time()
        with open(events) as lines:
            while True:
                ended = process.poll() is not None
                for line in lines.readlines():
                    event, last = json.loads(line), time.time()
                    if event["event"] == "begin":
                        running, phases = event, []
                    elif event["event"] == "phase":
                        phases.append(event)
                    else:
                        yield self._row(running, phases, event["time"])
                        running = None
                if ended or (running and time.time() - last > 2 * self.options.limit + 30):
                    break
                time.sleep(0.1)
        if running:
            yield {"id": running["id"], "result": "hung", "seconds": f"{time.time() - running['time']:.1f}",
                   "message": "the process was killed" if not ended else f"the process ended with {process.returncode}"}

    def _row(self, begun, phases, end):
        failed = next((phase for phase in phases if phase["outcome"] == "failed"), None)
        worst = failed or next((phase for phase in phases if phase["outcome"] != "passed"), None)
        if failed:
            path = pathlib.Path(self.options.log) / "failures.jsonl"
            with open(path, "a") as file:
                file.write(json.dumps({"id": begun["id"], "text": failed["text"]}) + "\n")
        return {"id": begun["id"], "result": worst["outcome"] if worst else "passed",
                "seconds": f"{end - begun['time']:.1f}", "message": one_line(worst["message"]) if worst else ""}


def one_line(text):
    return " ".join(text.split())[:400]


def end_session(process):
    """Ends what is left of the process and of the ranks that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def remove_shared_memory():
    """DeepSpeed does not remove its buffers of 66 MiB for each rank."""
    for path in pathlib.Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"):
        path.unlink(missing_ok=True)


def run(options):
    options.log = options.log or options.out.with_suffix(".log")
    options.log.mkdir(parents=True, exist_ok=True)
    done = read_table(options.out) if options.out.exists() else []
    kept = [row["id"] for row in read_table(CASES) if not row["left_out_by"]]
    if options.passed:
        passed = {row["id"] for row in read_table(options.passed) if row["result"] == "passed"}
        kept = [case for case in kept if case in passed]
    if options.cases:
        kept = [case for case in kept if any(text in case for text in options.cases)]
    known = {row["id"] for row in done}
    files = {}
    for case in kept:
        if case not in known:
            files.setdefault(case.split("::")[0], []).append(case)
    for file in sorted(files, key=lambda name: next(i for i, start in enumerate(SCOPE) if name.startswith(start))):
        for row in Run(options, file, files[file]).results():
            done.append({**row, "commit": options.commit})
            write_table(options.out, COLUMNS, done)
            print(row["result"], row["seconds"], row["id"], row["message"][:160], flush=True)
    counts = {}
    for row in done:
        counts[row["result"]] = counts.get(row["result"], 0) + 1
    print(", ".join(f"{count} {result}" for result, count in counts.items()))


def summary(options):
    """Counts each case that passed under DeepSpeed (--passed) with what ZeroRun (--results) makes of it."""
    reasons = [(kind, re.compile(expression), reason) for kind, expression, reason in cases.read_rows(HERE / "reasons.tsv")]
    passed = [row["id"] for row in read_table(options.passed) if row["result"] == "passed"]
    found = {row["id"]: row for row in read_table(options.results)}
    rows, counts = [], {}
    for case in passed:
        row = found.get(case, {"result": "not run", "message": ""})
        kind, reason = row["result"], ""
        if kind != "passed":
            kind, reason = next(((kind, why) for kind, expression, why in reasons
                                 if expression.search(f"{case} {row['message']}")),
                                (kind, row["message"]))
        rows.append({"id": case, "result": kind, "reason": reason})
        counts[kind] = counts.get(kind, 0) + 1
    print(f"{len(passed)} pass under DeepSpeed; of these, under ZeroRun: "
          + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: -item[1])))
    reported = {}
    for row in rows:
        if row["result"] != "passed":
            reported.setdefault((row["result"], row["reason"]), []).append(row["id"])
    for (kind, reason), ids in sorted(reported.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"{len(ids):4}  {kind}: {reason}  ({ids[0]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["collect", "run", "summary"])
    parser.add_argument("--tests", type=pathlib.Path, default=os.environ.get("DEEPSPEED_TESTS") and pathlib.Path(os.environ["DEEPSPEED_TESTS"]))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, help="a folder for pytest's output; by default beside --out")
    parser.add_argument("--limit", type=int, default=SECONDS_OF_A_CASE, help="seconds after which a case has hung")
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--cases", nargs="+", default=[], help="run only cases whose id contains one of these")
    parser.add_argument("--commit", default="", help="of the package that runs, for the table")
    parser.add_argument("--results", type=pathlib.Path, help="ZeroRun's results, for summary")
    parser.add_argument("--passed", type=pathlib.Path, help="run only cases that passed in these results")
    options = parser.parse_args()
    if options.command == "summary":
        summary(options)
        return
    if options.tests is None or not (options.tests / "unit/common.py").is_file():
        parser.error("--tests (or DEEPSPEED_TESTS) must name DeepSpeed's folder tests")
    options.tests = pathlib.Path(options.tests).resolve()
    if options.command == "run" and options.out is None:
        parser.error("run needs --out")
    (collect if options.command == "collect" else run)(options)


if __name__ == "__main__":
    main()
