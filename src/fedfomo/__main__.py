"""Let `python -m fedfomo` be the command `fedfomo`."""

from fedfomo.cli import main

main()
