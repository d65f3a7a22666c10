"""The process of the command `fedfomo`, and of `python -m fedfomo`: signals, before anything slow is imported."""

import os
import signal
from types import FrameType


def start() -> None:
    """Run the command line; Ctrl-C during the imports ends the process without a word."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from fedfomo.cli.main import main
    from fedfomo.cli.terminal import Terminated

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    main()


if __name__ == "__main__":
    start()
