"""Checks that the installed torch fits this build, before anything else is imported. Each error names the remedy."""

import os

TORCH_VERSION = "2.11.0"


def check_torch(version, has_new_abi):
    found = version.split("+")[0]
    if found != TORCH_VERSION:
        raise ImportError(
            f"zerorun is built for torch {TORCH_VERSION}, found torch {version}: pip install torch=={TORCH_VERSION}")
    if not has_new_abi:
        raise ImportError(
            f"this torch {version} is built with the old ABI of libstdc++: install PyPI's, pip install torch=={TORCH_VERSION}")


def check_key(is_free):
    if not is_free:
        raise ImportError(
            "another package of this process uses torch's dispatch key Fake, by which zerorun hears of operators on "
            "parameters: import zerorun without that package")


def load_core():
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"zerorun needs torch: pip install torch=={TORCH_VERSION} ({error})") from error
    check_torch(torch.__version__, torch.compiled_with_cxx11_abi())
    try:
        from . import _core
    except ImportError as error:
        folder = os.path.dirname(torch.__file__)
        raise ImportError(
            f"zerorun's extension does not load beside the torch in {folder}: install both into one environment, "
            f"pip install zerorun torch=={TORCH_VERSION} ({error})") from error
    check_key(_core.key_is_free())
    return _core
