"""zerorun.pipe, like deepspeed.pipe: models as lists of layers, which pipeline stages divide among themselves."""

from .runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: F401
