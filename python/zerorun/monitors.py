"""The monitors that are Python packages: Weights & Biases and Comet. Only rank 0 has them; the engine's core writes files itself."""

import importlib
import logging
import weakref

from .live_line import LiveLine

log = logging.getLogger("zerorun")


class PackageMonitors:
    """Passes the engine's events on. Training goes on without a package that is missing or fails: one warning says so."""

    def __init__(self, config):
        self._monitors = []
        for key, package, kind in (("wandb", "wandb", _Wandb), ("comet", "comet_ml", _Comet)):
            if config[key] is not None:
                self._open(key, package, kind, config[key])

    def _open(self, key, package, kind, settings):
        try:
            module = importlib.import_module(package)
        except Exception as error:  # noqa: BLE001: whatever the package raises
            log.warning("%s.enabled: nothing is written to it, since the package %s cannot be imported (%s): pip install %s, or enable "
                        "csv_monitor or tensorboard", key, package, error, package)
            return
        try:
            self._monitors.append((key, kind(module, settings)))
        except Exception as error:  # noqa: BLE001: whatever the package raises
            _warn(key, error)

    def write(self, events):
        for key, monitor in list(self._monitors):
            try:
                for event in events:
                    monitor.write(*event)
            except Exception as error:  # noqa: BLE001: whatever the package raises
                self._monitors.remove((key, monitor))
                _warn(key, error)


class Monitored:
    """The part of an engine that its monitors see."""

    def log(self, tag, value):
        """Writes a value of the program to all monitors of the config, at the number of samples so far. `tag`: such as "eval/loss".
        `value`: a number, or a tensor of one element, which is waited for. All ranks may call it, and that of rank 0 is written."""
        self._core.log(tag, float(value))
        self._send_events()

    _live_line = None

    def live_line(self, steps=0, tokens_per_step=0):
        """Returns the LiveLine that shows how training goes, in place of an earlier one. `steps`: of the whole training; 0: not known.
        `tokens_per_step`: of all ranks; 0: samples are shown. Measures a matrix product on rank 0, a fraction of a second."""
        self._end_live_line()
        line = LiveLine(self, steps, tokens_per_step)
        self._live_line = weakref.ref(line)
        return line

    def _end_live_line(self):
        line = self._live_line and self._live_line()
        if line is not None:
            line.end()

    def set_tokens_per_step(self, tokens):
        """Tells the run log how many tokens the ranks train on together in an optimizer step, for reports."""
        self._core.set_tokens_per_step(tokens)

    def log_communication(self):
        """With comms_logger enabled, logs a table of rank 0's collectives so far, and returns it there; otherwise returns ""."""
        return self._core.log_communication()

    def _send_events(self):
        if self._monitors is not None:
            self._monitors.write(self._core.take_events())


def _warn(key, error):
    log.warning("%s: %s: %s: training goes on without this monitor", key, type(error).__name__, error)


class _Wandb:
    def __init__(self, wandb, settings):
        self._wandb = wandb
        wandb.init(**settings)

    def write(self, tag, value, samples):
        self._wandb.log({tag: value}, step=samples)


class _Comet:
    def __init__(self, comet, settings):
        settings = dict(settings)
        self._interval = settings.pop("samples_log_interval")
        name = settings.pop("experiment_name")
        self._experiment = comet.start(**settings)
        if name is not None:
            self._experiment.set_name(name)
        self._written = {}  # the samples at which a tag was written last

    def write(self, tag, value, samples):
        last = self._written.get(tag)
        if last is not None and samples - last < self._interval:
            return
        self._written[tag] = samples
        self._experiment.log_metric(tag, value, step=samples)
