"""Let `python -m fedfomo` be the command `fedfomo`."""

from fedfomo.cli.main import main

main()
