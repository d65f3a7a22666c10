"""The command line: finds the command, and turns what a user can put right into one line.

Torch takes seconds to import, so nothing here, nor a command's own help, imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from fedfomo.cli.terminal import fail, stop_code
from fedfomo.errors import InputError, disk_sentence, is_disk_fault, sentence_of, unknown

USAGE = """\
usage: fedfomo COMMAND [--help]

Personalised federated learning: every client federates with the clients that help it.

  demo        six post offices learn to read digits, alone and together; takes a minute
  run         run one method and write its log, models and scores to a folder
  compare     run several methods on the same clients, over several seeds, and show one table
  resume      continue a run or a comparison that was interrupted
  report      write an HTML report on a run: which clients gain by federating, and who learned from whom;
              report compare: an HTML report that compares methods over several runs
  runs        runs frame: every figure of every client and round as one tidy table
  export      write one client's model, for load_state_dict
  serve       mix a run's models for a site that took no part in it
  check       validate the data of your own sites before a run: counts, labels, duplicates
  methods     list the methods, or the options of one
  scenarios   list the ways to split data over clients; scenarios show: what each client would hold
  data        download a public data set
  deploy      set up, run and watch a federation of real sites

Help on a command: fedfomo run --help
"""


COMMANDS = (
    "demo",
    "run",
    "compare",
    "resume",
    "report",
    "runs",
    "export",
    "serve",
    "check",
    "methods",
    "scenarios",
    "data",
    "deploy",
)
"""Each has a module of this name in `fedfomo.cli`, with a function of this name."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; bad input ends it with one line and exit code 2."""
    run_and_exit(_run_command, arguments)


def run_and_exit(command: Callable[[list[str]], None], arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a program's command and end the process as every command of fedfomo ends."""
    try:
        command(list(sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        fail(sentence_of(error), 2)
    except KeyboardInterrupt as stop:
        fail("stopped", stop_code(stop))
    except BrokenPipeError:  # whoever was reading, `head` for one, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        sys.exit(141)
    except OSError as error:
        if not is_disk_fault(error):
            raise
        fail(disk_sentence(error), 2)
    sys.exit(0)


def _run_command(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command: Callable[[list[str]], None] = getattr(import_module(f"fedfomo.cli.{name}"), name)
    command(rest)
