"""DeepSpeed's classes for sections of a ds_config.json. An object has the value of each key of its section: what it is given, or the
default that this engine's table of keys has. Values are checked by initialize(), which takes the dict, not such an object."""

import functools
import json
import subprocess

from ..errors import BadArgument
from ..utils import SPARSE_BLOCKS
from ..zero_to_fp32 import command_of_package


@functools.lru_cache(None)
def _keys(*path):
    """The keys of a section, as the JSON Schema that `zerorun config schema` prints describes them."""
    schema = json.loads(subprocess.run([command_of_package(), "config", "schema"], capture_output=True, check=True).stdout)
    for part in path:
        schema = schema["properties"][part]
    return schema["properties"]


class _Section:
    """A key's attribute has the key's name, without stage3_."""

    _path = ()

    def __init__(self, **given):
        keys = _keys(*self._path)
        unknown = [key for key in given if key not in keys]
        if unknown:
            raise BadArgument(f"{type(self).__name__}: {'.'.join(self._path)} has no key {unknown[0]!r}: docs/ds_config.md lists its keys")
        for key, facts in keys.items():
            if "deprecationMessage" not in facts and not hasattr(self, key.removeprefix("stage3_")):
                setattr(self, key.removeprefix("stage3_"), facts.get("default"))
        for key, value in given.items():
            setattr(self, key.removeprefix("stage3_"), value)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class DeepSpeedZeroOffloadParamConfig(_Section):
    _path = ("zero_optimization", "offload_param")


class DeepSpeedZeroOffloadOptimizerConfig(_Section):
    _path = ("zero_optimization", "offload_optimizer")

    @property
    def pipeline(self):
        return self.pipeline_read or self.pipeline_write


class DeepSpeedZeroLeafModuleConfig(_Section):
    _path = ("zero_optimization", "leaf_module")

    def __init__(self, **given):
        super().__init__(**given)
        for name, otherwise in (("classes", SPARSE_BLOCKS), ("names", []), ("name_suffixes", [])):
            value = getattr(self, name)
            setattr(self, name, [value] if isinstance(value, str) else list(otherwise if value is None else dict.fromkeys(value)))


_OLD = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param", "cpu_offload_params": "offload_param"}


class DeepSpeedZeroConfig(_Section):
    _path = ("zero_optimization",)

    def __init__(self, **given):
        for old, new in _OLD.items():
            if given.pop(old, False):
                given.setdefault(new, {"device": "cpu"})
        if "stage3_gather_fp16_weights_on_model_save" in given:
            given["gather_16bit_weights_on_model_save"] = given.pop("stage3_gather_fp16_weights_on_model_save")
        super().__init__(**given)
        if self.overlap_comm is None:
            self.overlap_comm = self.stage == 3
        for name, kind in (("offload_param", DeepSpeedZeroOffloadParamConfig), ("offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig)):
            if isinstance(getattr(self, name), dict):
                setattr(self, name, kind(**getattr(self, name)))
        self.leaf_module = DeepSpeedZeroLeafModuleConfig(**(self.leaf_module or {}))
