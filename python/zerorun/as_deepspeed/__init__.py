"""zerorun under the name deepspeed, only where a program or its launcher asks for it.

The folder `path` beside this file, in front of PYTHONPATH, has a package `deepspeed` and the metadata of its version; its
folder `bin`, in front of PATH, has the command `deepspeed`. The names of the package are in names.py, and modules.py makes
modules of them. `zerorun --as-deepspeed` and `python -m zerorun.as_deepspeed` (__main__.py) use the folder.
"""

import os
import pathlib
import shutil
import sysconfig

VERSION = "0.19.8"  # of the DeepSpeed whose names these are
FOLDER = pathlib.Path(__file__).parent / "path"


def variables(environ=os.environ):
    """The variables of the environment in which programs find zerorun as deepspeed, with their values."""
    folders = [str(FOLDER / "bin"), *_split(environ.get("PATH", os.defpath))]
    if shutil.which("zerorun", path=os.pathsep.join(folders)) is None:  # the environment of this Python is not activated
        folders.append(sysconfig.get_path("scripts"))
    modules = [str(FOLDER), *_split(environ.get("PYTHONPATH", ""))]
    return {"PATH": _joined(folders), "PYTHONPATH": _joined(modules)}


def _split(text):
    return text.split(os.pathsep) if text else []


def _joined(folders):
    """Each folder once: a launcher and its ranks both add them."""
    return os.pathsep.join(dict.fromkeys(folders))
