"""trainwarden: a streaming anomaly-detection and observability pipeline for LLM training."""

__version__ = "0.2.0"


def autoload() -> None:
    """Put the hook in place; torch calls this at the end of ``import torch``, and makes a failed import of any error.

    Of an installation that is damaged (a file half written, not readable, of another edition) the job notices nothing.
    """
    try:
        from trainwarden import hook

        hook.autoload()
    except Exception:  # noqa: BLE001, S110 - nobody to tell: a training job is not ours to write into
        pass
