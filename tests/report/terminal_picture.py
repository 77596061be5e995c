"""terminal_picture.py PNG UNTIL COMMAND...: runs COMMAND on a terminal of its own, and takes a picture of its last lines once it has written
UNTIL, such as "step 40/60", within two minutes."""

import fcntl
import html
import os
import pathlib
import pty
import re
import signal
import struct
import sys
import tempfile
import termios

import browser

LINES = 8
png, until, command = sys.argv[1], sys.argv[2], sys.argv[3:]

process, terminal = pty.fork()
if process == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    os.execvp(command[0], command)
signal.alarm(120)  # ends this script
written = ""
while until not in written:
    try:
        part = os.read(terminal, 4096)
    except OSError:  # it has ended
        sys.exit(f"{command[0]} has not written {until!r}: {written[-2000:]}")
    written += part.decode(errors="replace")
while not written.endswith(("\r", "\n", " waiting")):  # the rest of the line
    written += os.read(terminal, 1).decode(errors="replace")
os.kill(process, signal.SIGTERM)

# What the terminal shows: a line that stays is written again and again behind a carriage return.
plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.replace("\r\n", "\n"))
lines = [line.rstrip("\r").split("\r")[-1] for line in plain.split("\n")]
shown = html.escape("\n".join(["$ " + " ".join(pathlib.Path(word).name for word in command), *lines[-LINES:]]))
with tempfile.TemporaryDirectory() as folder, browser.Browser() as chromium:
    page = pathlib.Path(folder) / "terminal.html"
    page.write_text("<!doctype html><meta charset=utf-8><style>body{margin:0;background:#14171b;color:#e4e7eb;font:14px/1.5 monospace}"
                    f"pre{{margin:0;padding:14px 18px}}</style><pre>{shown}</pre>", encoding="utf-8")
    chromium.open(page, 1280)
    height = chromium.run("Math.ceil(document.querySelector('pre').getBoundingClientRect().height)")
    chromium.screenshot(png, height=height)
