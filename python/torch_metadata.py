"""The parts of the wheel's metadata that depend on torch; scikit-build-core asks for them (pyproject.toml).

A wheel is compiled for one minor version of torch, in the folder $TORCH_DIR. Its version names it, so that files for
several versions can lie side by side, and its dependency lets pip install that version.
"""

import os
import pathlib
import re


def _numbers(file, pattern):
    return ".".join(re.search(pattern, file.read_text()).groups())


def dynamic_metadata(field, settings):
    torch = _numbers(pathlib.Path(os.environ["TORCH_DIR"]) / "include/torch/headeronly/version.h",
                     r'define TORCH_VERSION\s[^"]*"(\d+)\.(\d+)')
    if field == "dependencies":
        return [f"torch=={torch}.*"]
    project = pathlib.Path(__file__).parent.parent / "CMakeLists.txt"
    return _numbers(project, r"project\(zerorun VERSION (\d+\.\d+\.\d+)") + f"+torch{torch}"
