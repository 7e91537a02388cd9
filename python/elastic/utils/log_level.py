"""torch's module of this name."""

__all__ = ["get_log_level"]


def get_log_level() -> str:
    """The level of the loggers of ``get_logger`` unless ``LOGLEVEL`` is set."""
    return "WARNING"
