"""The getters of an engine, with DeepSpeed's names: settings, counts, its rank."""

import logging
import os

import torch

log = logging.getLogger("zerorun")


class Facts:
    """A base class of Engine, which sets _core, _config and optimizer."""

    # Of all ranks, up to the last optimizer step.
    global_samples = 0

    def train_batch_size(self):
        return self._config["train_batch_size"]

    def train_micro_batch_size_per_gpu(self):
        return self._config["micro_batch_size"]

    def gradient_accumulation_steps(self):
        return self._config["accumulation"]

    def managed_gradient_accumulation(self):
        return self._config["managed"]

    def zero_optimization_stage(self):
        return self._config["stage"]

    def zero_optimization(self):
        return self._config["stage"] > 0

    def zero_optimization_partition_weights(self):
        return self._config["stage"] == 3

    def fp16_enabled(self):
        return self._config["dtype"] == "fp16"

    def bfloat16_enabled(self):
        return self._config["dtype"] == "bf16"

    def gradient_clipping(self):
        return self._config["clipping"]

    def dynamic_loss_scale(self):
        return self._config["dynamic_loss_scale"]

    def get_lr(self):
        """Learning rate of each parameter group in the next optimizer step."""
        if self.optimizer is not None:
            self.optimizer.push()
        return self._core.get_lr()

    def get_mom(self):
        return self._core.get_betas()

    def get_global_grad_norm(self):
        return self._core.grad_norm()

    def was_step_applied(self):
        return self._core.was_step_applied()

    def should_stop(self):
        """Whether a rank had received SIGTERM at the last step, after zerorun.utils.survive_termination()."""
        return self._core.should_stop()

    @property
    def loss_scale(self):
        return self._core.loss_scale()

    @property
    def global_steps(self):
        return self._core.global_steps()

    @property
    def skipped_steps(self):
        return self._core.skipped_steps()

    @property
    def device(self):
        return torch.device(self._core.device())

    @property
    def dtype(self):
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self._config["dtype"]]

    @property
    def communication_shares_memory(self):
        return self._core.shares_memory()

    @property
    def global_rank(self):
        return self._core.rank()

    @property
    def local_rank(self):
        return int(os.environ.get("LOCAL_RANK", 0))

    @property
    def world_size(self):
        return self._core.world_size()

    @property
    def data_parallel_size(self):
        """The ranks among which gradients are averaged: all, unless there is a mesh."""
        return self._core.mesh_sizes()["data"]

    @property
    def mesh(self):
        """The sizes of the mesh, by axis."""
        return self._core.mesh_sizes()

    @property
    def coordinates(self):
        """This rank's place in the mesh, by axis."""
        return self._core.coordinates()

    @property
    def resolved_config(self):
        """Every setting with its value and where it comes from, as `zerorun config show` prints it."""
        return self._config["resolved"]

    def _count_samples(self, backwards):
        """Adds the samples of an optimizer step. `backwards`: of this rank, since the last step()."""
        if self.managed_gradient_accumulation():
            self.global_samples += self.train_batch_size()
        else:
            self.global_samples += backwards * self.train_micro_batch_size_per_gpu() * self.data_parallel_size

    def bytes_by_category(self):
        """Bytes of model states that this rank holds, by category."""
        return self._core.bytes()

    def dump_state(self):
        log.info("%s", self.resolved_config)
