"""A pytest plugin for run.py: which cases a file has, or running chosen ones and writing how each went.

ZERORUN_UNIT_COLLECT names a file for the cases of a collection. ZERORUN_UNIT_CASES names a file with the ids to run,
and ZERORUN_UNIT_EVENTS one that gets a line of JSON when a case begins and when it ends, so that the program which
started pytest knows the case that does not end.
"""

import json
import multiprocessing
import os
import pathlib
import time

# The ranks of a case are forked from a server that has imported these: importing takes most of the time of a small case.
PRELOADED = ["torch", "numpy", "pytest", "in_ranks", "deepspeed"]


def pytest_configure():
    multiprocessing.set_forkserver_preload(PRELOADED)


def pytest_collection_modifyitems(items):
    if "ZERORUN_UNIT_CASES" in os.environ:
        chosen = set(pathlib.Path(os.environ["ZERORUN_UNIT_CASES"]).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collection_finish(session):
    if "ZERORUN_UNIT_COLLECT" not in os.environ:
        return
    cases = [{
        "id": item.nodeid,
        "file": item.nodeid.split("::")[0],
        "class": item.cls.__name__ if item.cls else None,
        "function": item.originalname,
        "fixtures": sorted(set(item.fixturenames)),
    } for item in session.items]
    pathlib.Path(os.environ["ZERORUN_UNIT_COLLECT"]).write_text(json.dumps(cases))


def write_event(**event):
    if "ZERORUN_UNIT_EVENTS" in os.environ:
        with open(os.environ["ZERORUN_UNIT_EVENTS"], "a") as events:
            events.write(json.dumps(event) + "\n")


def pytest_runtest_logstart(nodeid):
    write_event(event="begin", id=nodeid, time=time.time())


def pytest_runtest_logreport(report):
    write_event(event="phase", id=report.nodeid, phase=report.when, outcome=outcome_of(report), text=report.longreprtext,
                message=message_of(report))


def outcome_of(report):
    """pytest's word, but "expected" for a failure that the test itself declares to be known."""
    return "expected" if report.skipped and hasattr(report, "wasxfail") else report.outcome


def message_of(report):
    """One line: the reason of a skip, or what was raised."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else ""


def pytest_runtest_logfinish(nodeid):
    write_event(event="end", id=nodeid, time=time.time())
