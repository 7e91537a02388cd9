"""torch's module of this name; torch is imported on the first use of a name."""

from elastic import _lazy

_HOMES = {"log_debug_info_for_expired_timers": "torch.distributed.elastic.timer.debug_info_logging"}
__getattr__, __dir__ = _lazy.attach(__name__, _HOMES)
