"""The Flower ClientApp of a site: hands what the server encrypted to whoever can open it, and returns the answer.

Flower starts a process for every message. Importing torch and reading data each time would take longer than most
rounds, so `fedfomo deploy site --supernode` keeps a worker with both; without one, the work is done here.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfomo.deployment.flower_records import content_of, deadline, introduction, record_of
from fedfomo.deployment.settings import SITE_VARIABLE, WORKER_VARIABLE, SiteFolder

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Carry out a request."""
    request, until = content_of(message.content), deadline(message)
    if WORKER_VARIABLE in os.environ:
        from fedfomo.deployment.worker_ipc import send

        answer = send(Path(os.environ[WORKER_VARIABLE]), request, until)
    else:
        from fedfomo.deployment.site_client import Worker

        answer = Worker.here().handle(request, until)
    return Message(record_of(answer), reply_to=message)


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server, and prove, which site this is."""
    return introduction(SiteFolder(Path(os.environ[SITE_VARIABLE])), message)
