"""The Flower ServerApp of a federation."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfomo.deployment.settings import EXPERIMENT_VARIABLE, SERVER_VARIABLE, FederationFolder
from fedfomo.errors import InputError
from fedfomo.io import PRIVATE, write_atomically

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the federation whose folder the environment names; leave word of what a user can put right."""
    from fedfomo.core.determinism import one_torch_thread
    from fedfomo.deployment.flower_grid import FlowerGrid
    from fedfomo.deployment.server_run import serve

    folder = FederationFolder(Path(os.environ[SERVER_VARIABLE]), os.environ.get(EXPERIMENT_VARIABLE, ""))
    write_atomically(folder.process, str(os.getpid()).encode(), mode=PRIVATE)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        with one_torch_thread():
            serve(FlowerGrid(grid), folder)
    except InputError as error:
        folder.failure.write_text(str(error))
        raise
    except Exception:
        folder.failure.with_suffix(".log").write_text(traceback.format_exc())
        raise
