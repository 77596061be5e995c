"""Chromium without a window, driven by its DevTools protocol over a pipe: with Python's standard library only."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 60  # seconds for an answer of the browser


def find():
    """The program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Opens one page after another. Every name that the page looks up is unknown, so no request can be answered."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync",
                   "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--force-color-profile=srgb",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe"]
        # The browser reads file 3 and writes file 4.
        redirected = f'exec "$@" 3<&{commands} 4>&{answers}'
        environment = {**os.environ, "HOME": self.folder.name, "XDG_CONFIG_HOME": self.folder.name}
        self.process = subprocess.Popen(["bash", "-c", redirected, "bash", find(), *options], pass_fds=(commands, answers),
                                        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.buffer, self.number, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)  # the browser ends
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        self.folder.cleanup()

    def message(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.answers, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser has ended" if ready else f"the browser has not answered within {PATIENCE} s")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self.message(deadline)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, page, width, height=900, dark=False):
        """Opens a file and returns when it has been loaded and drawn. Its events are those in self.events."""
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events = []
        self.call("Page.navigate", url=pathlib.Path(page).resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message(deadline))
        self.settle()

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def settle(self):
        """Returns when what has changed is drawn. Figures follow a resize in a frame of their own."""
        frame = "await new Promise(requestAnimationFrame);"
        self.run(f"(async () => {{ {4 * frame} }})()")

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{result['exceptionDetails']}")
        return result["result"].get("value")

    def mouse(self, kind, x, y, buttons=0):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=buttons, button="left" if kind != "mouseMoved" else "none",
                  clickCount=0 if kind == "mouseMoved" else 1)

    def complaints(self):
        """What went wrong since open(): exceptions, errors and warnings of the console, and requests."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {parameters['exceptionDetails']}")
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(f"console: {[argument.get('value') for argument in parameters['args']]}")
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {parameters['entry']['text']}")
            elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
                found.append(f"request: {parameters['request']['url']}")
        files = {event["params"]["request"]["url"] for event in self.events
                 if event.get("method") == "Network.requestWillBeSent" and event["params"]["request"]["url"].startswith("file:")}
        return found + ([f"requests of files: {files}"] if len(files) > 1 else [])

    def screenshot(self, path, top=0, height=None):
        """Writes the page from `top` on as a PNG: `height` pixels, or all of it."""
        width, all_of_it = self.run("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": width, "height": min(height or all_of_it, all_of_it - top), "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(image))
