"""disable_python_gc: Python's collector of reference cycles is off while an engine lives that asks for it."""
import gc
import os
import weakref

_engines = {}  # what ends the wish of an engine that lives, by its identity
_was_enabled = False


def switch_off(engine):
    """Collects once and switches the automatic collector off, until the last such engine ends or calls switch_on()."""
    global _was_enabled
    if not _engines:
        _was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
    _engines[id(engine)] = weakref.finalize(engine, _end, id(engine))


def switch_on(engine):
    """Has no effect for an engine that has not called switch_off()."""
    finalizer = _engines.get(id(engine))
    if finalizer is not None:
        finalizer()


def _after_fork():
    """A forked child, such as a loader's worker, has no engine."""
    if _engines and _was_enabled:
        gc.enable()
    _engines.clear()


os.register_at_fork(after_in_child=_after_fork)


def _end(identity):
    if _engines.pop(identity, None) is not None and not _engines and _was_enabled:
        gc.enable()
