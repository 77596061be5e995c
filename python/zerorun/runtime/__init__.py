from . import lr_schedules, utils  # noqa: F401
