"""Checks that the installed torch fits this build, before anything else is imported. Each error names the remedy."""

import os
import sys

from ._built_for import TORCH, VERSION


def _file_for(torch):
    """The name of the wheel of this zerorun for this Python and a version of torch."""
    tag = "cp%d%d" % sys.version_info[:2]
    return f"zerorun-{VERSION}+torch{torch}-{tag}-{tag}-*.whl"


def check_torch(version, has_new_abi):
    found = ".".join(version.split("+")[0].split(".")[:2])
    if found != TORCH:
        raise ImportError(
            f"this zerorun is built for torch {TORCH}, found torch {version}: install the file for it, {_file_for(found)} "
            f"(scripts/wheel --torch {found} builds it), or pip install 'torch=={TORCH}.*'")
    if not has_new_abi:
        raise ImportError(
            f"this torch {version} is built with the old ABI of libstdc++: install PyPI's, pip install 'torch=={TORCH}.*'")


def check_key(is_free):
    if not is_free:
        raise ImportError(
            "another package of this process uses the dispatch key of torch by which zerorun hears of operators on "
            "parameters: import zerorun without that package")


def load_core():
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"zerorun needs torch: pip install 'torch=={TORCH}.*' ({error})") from error
    check_torch(torch.__version__, torch.compiled_with_cxx11_abi())
    try:
        from . import _core
    except ImportError as error:
        folder = os.path.dirname(torch.__file__)
        raise ImportError(
            f"zerorun's extension does not load beside the torch in {folder}: install both into one environment, "
            f"pip install {_file_for(TORCH)} 'torch=={TORCH}.*' ({error})") from error
    check_key(_core.key_is_free())
    return _core
