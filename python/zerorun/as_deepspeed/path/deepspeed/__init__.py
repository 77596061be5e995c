"""zerorun under the name deepspeed (zerorun.as_deepspeed): in front of PYTHONPATH only where a program asks for it."""

import sys as _sys

from zerorun.as_deepspeed import VERSION as __version__  # noqa: F401
from zerorun.as_deepspeed.modules import fill_package as _fill_package

_fill_package(_sys.modules[__name__])
