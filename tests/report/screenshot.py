"""screenshot.py PAGE PNG [--width 1280] [--height PIXELS] [--from SELECTOR] [--dark]: takes a picture of a page of `zerorun report`."""

import argparse

import browser

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("page")
parser.add_argument("png")
parser.add_argument("--width", type=int, default=1280)
parser.add_argument("--height", type=int, help="default: the whole page")
parser.add_argument("--from", dest="selector", default="body", help="the element at whose top the picture begins")
parser.add_argument("--dark", action="store_true")
options = parser.parse_args()

with browser.Browser() as chromium:
    chromium.open(options.page, options.width, dark=options.dark)
    top = chromium.run(f"document.querySelector({options.selector!r}).getBoundingClientRect().top + scrollY")
    chromium.screenshot(options.png, top, options.height)
