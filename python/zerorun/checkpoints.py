"""Saving and loading checkpoints of an engine."""

import logging
import os
import weakref

from . import client_state as states, zero_to_fp32
from ._core import CommError, Error, UserError
from .errors import BadArgument, FailedAssertion, not_supported
from .inputs import path_for_core, shown, tag_for_core
from .module_notes import log_left_out

log = logging.getLogger("zerorun")

# In a checkpoint's client state: the state of the program's scheduler, the numbers of its optimizer if that runs itself, the
# samples so far if they are not those of all optimizer steps, and the place of training_data's loader.
_SCHEDULE_KEY, _OPTIMIZER_KEY, _SAMPLES_KEY, _DATA_KEY = "_lr_scheduler", "_zerorun_optimizer", "_zerorun_samples", "_zerorun_data"

# How the engine's error begins if ranks save under different tags, where DeepSpeed raises AssertionError.
_DIFFERENT = "ranks save different checkpoints"


class Checkpoints:
    """A base class of Engine, which sets _core, _flat, _runs_schedule, lr_scheduler and optimizer, and _training_loader if it has
    one."""

    _training_loader = None
    _own_state = None  # the function that load_newest() got
    _saves_own_state = _holds = _has_warned_of_late_changes = False
    _interruption = None

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True, exclude_frozen_parameters=False,
                        asynchronous=False, keep_last=0):
        """A collective, to be called between step() and the next backward(). Returns True. `client_state`: a dict of numbers,
        text, bytes, lists, tuples, sets, dicts, tensors and numpy arrays; that of rank 0 is saved, and all ranks must be able to
        keep theirs."""
        failure = None
        try:
            folder, folder_tag = path_for_core(save_dir, "save_checkpoint"), tag_for_core(tag, "save_checkpoint")
            if self.optimizer is not None:
                self.optimizer.push()
            self._saves_own_state = bool(client_state)
            text, tensors = states.write(self._state_to_save(client_state))  # gathers parameters of the engine
        except Exception as error:  # the other ranks must not wait for this one
            if isinstance(error, CommError) or self._core.has_lost_ranks():
                raise  # they have left, so another collective would only wait for them
            failure = error
        try:
            reason = "" if failure is None else str(failure) or repr(failure)
            self._core.refuse_on_all_ranks(reason.encode(errors="backslashreplace"))
        except Error as refusal:
            raise (BadArgument(str(refusal)) if isinstance(failure, BadArgument) else refusal) from failure
        folder_tag = self._agreed_tag(folder_tag)
        try:
            self._core.save_checkpoint(folder, folder_tag, text, tensors, save_latest, exclude_frozen_parameters, keep_last,
                                       asynchronous)
        except UserError as refusal:
            raise (FailedAssertion(str(refusal)) if str(refusal).startswith(_DIFFERENT) else refusal) from None
        if self._core.rank() == 0:
            zero_to_fp32.leave_script(save_dir)
        return True

    def _agreed_tag(self, tag):
        """Where ranks pass different tags, rank 0's, with a warning, as checkpoint.tag_validation says. With "fail" the save is refused."""
        if self._tag_validation == "fail":
            return tag
        of_rank_0 = self._core.tag_of_rank_0(tag)
        if of_rank_0 != tag and self._tag_validation != "ignore":
            log.warning("save_checkpoint(): this rank's tag %r is another than rank 0's %r, under which all ranks save", os.fsdecode(tag),
                        os.fsdecode(of_rank_0))
        return of_rank_0

    def _state_to_save(self, client_state, call="save_checkpoint()"):
        try:
            state = dict(client_state or {})
        except (TypeError, ValueError) as error:
            raise BadArgument(f"{call}: client_state is a {type(client_state).__name__}, expected a dict") from error
        if self.lr_scheduler is not None and not self._runs_schedule and hasattr(self.lr_scheduler, "state_dict"):
            state[_SCHEDULE_KEY] = self.lr_scheduler.state_dict()
        if self._flat is not None:
            state[_OPTIMIZER_KEY] = self._flat.save()
        if self.global_samples != self.global_steps * self.train_batch_size():
            state[_SAMPLES_KEY] = self.global_samples
        if self._training_loader is not None:
            state[_DATA_KEY] = self._training_loader.state_dict()
        return state

    def _state_to_hold(self):
        """What save_checkpoint() would save of Python now, for a generation in memory. The core makes a warning of an error."""
        try:
            if self._own_state is None and self._saves_own_state:
                raise UserError("the program saves a client_state: give load_newest() a function that returns it (client_state=...)")
            if self.optimizer is not None:
                self.optimizer.push()
            own = self._own_state() if self._own_state is not None else None
            return states.write(self._state_to_save(own, "the function of load_newest()"), may_gather=False)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._interruption = error
            raise

    def _raise_interruption(self):
        """The program's interruption (Ctrl-C, sys.exit()), if one came in the function that load_newest() got."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption

    def _hold(self):
        self._holds = self._core.hold_generation()
        self._raise_interruption()

    def _warn_of_late_changes(self):
        """Of changes behind a step, which the generation of that step does not have."""
        if self._holds and not self._has_warned_of_late_changes and self.optimizer.has_changes():
            self._has_warned_of_late_changes = True
            log.warning("the learning rate, betas or weight decay have changed since the last step() ended, behind the generation "
                        "that holds the step in memory (--hold_every): after a restart from there the old values count until they "
                        "are set again. Pass a schedule to initialize(lr_scheduler=...), or advance it before step()")

    def wait_for_checkpoint(self):
        """Waits until a checkpoint saved with asynchronous=True is on the disk, on all ranks. Raises UserError."""
        self._core.wait_for_checkpoint()

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True,
                        load_lr_scheduler_states=True, load_module_only=False, custom_load_fn=None, load_data_position=False):
        """Returns (path, client_state); (None, None) if no tag is given and the folder of rank 0 has no file `latest`. With
        `load_data_position` the loader of initialize(training_data=...) goes on where the checkpoint was saved; without it, it
        begins anew, as programs for DeepSpeed expect, which skip batches themselves. A collective."""
        if custom_load_fn is not None:
            raise not_supported("load_checkpoint(custom_load_fn=...)", "load with load_module_strict=False")
        folder, folder_tag = path_for_core(load_dir, "load_checkpoint"), tag_for_core(tag, "load_checkpoint")
        if tag is None and not self._core.has_checkpoint(folder):
            log.warning("%s has no checkpoint (no file `latest`): nothing is loaded", shown(load_dir))
            return None, None
        return self._load(lambda *what: self._core.load_checkpoint(folder, folder_tag, *what), load_module_strict,
                          load_optimizer_states, load_lr_scheduler_states, load_module_only, load_data_position)

    def load_newest(self, load_dir, client_state=None):
        """Returns (path, client_state) of the checkpoint that was saved last and is whole on all ranks; None if there is no
        checkpoint. A damaged one is passed over, and the log warns (docs/restarts.md). The loader of initialize(training_data=...)
        goes on where the checkpoint was saved. `client_state`: a function without arguments that returns what save_checkpoint()
        gets under this name, for generations in memory (zerorun --hold_every): it is called in this function, and in each step()
        that ends an optimizer step. A collective."""
        if client_state is not None and not callable(client_state):
            raise BadArgument(f"load_newest(): client_state is a {type(client_state).__name__}, expected a function that returns the "
                              "dict")
        folder = path_for_core(load_dir, "load_newest")
        self._own_state = client_state
        if self.optimizer is not None:
            self.optimizer.push()  # so that nothing is left to push over what is loaded
        engine = weakref.proxy(self)  # the core keeps the function
        try:
            return self._load(lambda *what: self._core.load_newest(folder, *what, lambda: engine._state_to_hold()), True, True, True,
                              False, True)
        finally:
            self._raise_interruption()

    def _load(self, load, load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only, load_data_position):
        whole = not (load_module_only or self._config["computes_only"])
        # Without a schedule of the engine, learning rates and counts of steps are the optimizer's.
        counts = load_lr_scheduler_states or (load_optimizer_states and not self._runs_schedule)
        found = load(load_module_strict, load_optimizer_states and whole, counts and whole)
        if found is None:
            return None
        path, text, tensors = os.fsdecode(found[0]), *found[1:]
        state = states.read(text, tensors) or {}
        own = (_SCHEDULE_KEY, _OPTIMIZER_KEY, _SAMPLES_KEY, _DATA_KEY)
        schedule, numbers, samples, place = (state.pop(key, None) if isinstance(state, dict) else None for key in own)
        if schedule is not None and load_lr_scheduler_states and whole and self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(schedule)
        self._saves_own_state = bool(state)
        self._scheduled_steps = self._steps_applied()
        if counts and whole:
            self.global_samples = self.global_steps * self.train_batch_size() if samples is None else samples
            self._core.set_global_samples(self.global_samples)
        if load_data_position and whole and place is not None and self._training_loader is not None:
            self._training_loader.load_state_dict(place)
        if self._flat is not None and load_optimizer_states and whole:
            self._flat.load(numbers)
        if load_module_strict and self._core.rank() == 0 and os.path.isdir(path):  # not a generation in memory
            log_left_out(path, self.module)
        if self.optimizer is not None:
            self.optimizer.pull()
        return path, state
