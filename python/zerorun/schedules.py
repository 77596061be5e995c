"""Schedules of learning rates: the config's, and those of the program."""

from ._core import UserError
from .runtime.lr_schedules import starting_momentum


class Scheduled:
    """A base class of Engine, which sets _core, _runs_schedule, _lr_scheduler, _scheduled_steps and optimizer."""

    def _make_schedule(self, given):
        if given is None:
            return ConfigSchedule(self) if self._runs_schedule else None
        schedule = given if hasattr(given, "step") else given(self.optimizer)
        of = getattr(schedule, "optimizer", None)
        if of is not None and of is not self.optimizer and of is not self.optimizer.optimizer:
            raise UserError("initialize(): lr_scheduler was made for another optimizer: make it for the one that is passed "
                            "to initialize()")
        return schedule

    @property
    def lr_scheduler(self):
        """What step() advances at each applied optimizer step. The program may set another, or None: then the one before, also a
        schedule of the config, moves only when the program calls its step()."""
        return self._lr_scheduler

    @lr_scheduler.setter
    def lr_scheduler(self, schedule):
        if self._runs_schedule and schedule is not self._lr_scheduler:
            self._lr_scheduler.release()
            self._runs_schedule = False
        self._lr_scheduler = schedule
        self._scheduled_steps = self._steps_applied()

    def _steps_applied(self):
        return self._core.global_steps() - self._core.skipped_steps()

    def _advance_schedule(self, lr_kwargs):
        """Advances the program's schedule once for each applied step: an interrupt of the program (Ctrl-C) may come between
        the step and the schedule, which the next step then makes up for."""
        if self._runs_schedule or self.lr_scheduler is None:
            return
        while self._scheduled_steps < self._steps_applied():
            self._scheduled_steps += 1
            self.lr_scheduler.step(**lr_kwargs)


class ConfigSchedule:
    """The config's scheduler. The engine advances it, and this object only reports its values. Once engine.lr_scheduler is another
    or None, the program does, with step()."""

    def __init__(self, engine):
        self._engine = engine
        self._iteration = None  # as DeepSpeed counts them, from -1 on, if the program advances it

    def release(self):
        """From now on the program advances it."""
        self._engine._core.release_schedule()
        self._iteration = self._engine._steps_applied() - 1

    def get_lr(self):
        return self._engine.get_lr()

    get_last_lr = get_lr

    def get_mom(self):
        """(momentum, beta2) of each group, or None where the schedule leaves them alone."""
        highest, betas = self._engine._config["highest_momentum"], self._engine.get_mom()
        if highest is None or None in betas:
            return None
        return starting_momentum(betas, highest) if self._engine.global_steps == 0 else betas

    def step(self, *args, **kwargs):
        """Has no effect while the engine advances the schedule, with each applied optimizer step."""
        if self._iteration is not None:
            given = [*args, *kwargs.values()]
            self._go_to(given[0] if given and given[0] is not None else self._iteration + 1)

    def _go_to(self, iteration):
        self._iteration = iteration
        self._engine._core.set_scheduled(iteration + 1)
        self._engine.optimizer.pull()

    def state_dict(self):
        return {} if self._iteration is None else {"last_batch_iteration": self._iteration}

    def load_state_dict(self, state):
        """Has no effect while the engine advances the schedule: engine.load_checkpoint() restores its position."""
        if self._iteration is not None and "last_batch_iteration" in state:
            self._go_to(state["last_batch_iteration"])
