"""A site's node: it asks the server for requests and carries them out itself, with torch, model and data loaded.

It takes the place of Flower's SuperNode, which starts a process with the server's app for every message. Nothing that
the server sends is run here: a request is data, and what is done with it is this package's and the site's own code.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import httpx
from flwr.app import Error, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError

from fedfomo.deployment.encryption import DecryptionError
from fedfomo.deployment.fleet_connection import FleetConnection, LinkError
from fedfomo.deployment.flower_records import content_of, deadline, introduction, record_of
from fedfomo.deployment.settings import SITE_VARIABLE, SiteFolder
from fedfomo.deployment.site_status import is_finished
from fedfomo.deployment.subprocesses import ends_in_one_line
from fedfomo.errors import InputError, sentence_of
from fedfomo.io import printable, write_atomically

SHORTEST, LONGEST, GROWTH = 0.2, 2.0, 1.2  # seconds between looks for a request: the longer nothing comes, the fewer
RUN_IS_OVER = 403  # an answer of the SuperLink
PAUSE = 3.0  # seconds before the server is tried again

Handle = Callable[[bytes, float], bytes]
Tell = Callable[[str], None]

log = logging.getLogger(__name__)


class ResidentNode:
    """Keeps a site on line, and passes requests on to whoever carries them out."""

    def __init__(self, site: SiteFolder, handle: Handle, tell: Tell, stop: threading.Event) -> None:
        self._site = site
        self._handle = handle
        self._tell = tell
        self._stop = stop
        self._told = ""  # the last words

    def run(self) -> None:
        """Work until told to stop; whatever happens to the connection, it is made anew."""
        while not self._stop.is_set():
            connection = None
            try:
                connection = self.connect()
                connection.activate()
                self._say("on line: waiting for the server's requests")
                self._serve(connection)
            except InputError as error:  # something is wrong with the site's own folder
                self._say(f"{sentence_of(error)}; trying again", is_fault=True)
            except LinkError as error:
                self._say_apart(f"{error}; trying again")
            except httpx.HTTPStatusError as error:  # it is struck off, or the SuperLink is another one
                log.warning("the server answers with %d", error.response.status_code)
            except (httpx.HTTPError, OSError) as error:
                self._say_apart(f"the connection to the server broke ({type(error).__name__}); trying again")
            finally:
                if connection is not None:
                    connection.close()
            self._stop.wait(PAUSE)

    def connect(self) -> FleetConnection:
        """Prepare a connection."""
        return FleetConnection(self._site)

    def _serve(self, connection: FleetConnection) -> None:
        pause = SHORTEST
        while not self._stop.is_set():
            try:
                message = connection.receive()
            except ObjectPullError as error:  # a request of a round that is over
                log.warning("a request is lost: %s", error)
                continue
            if message is None:
                self._stop.wait(pause)
                pause = min(LONGEST, GROWTH * pause)
                continue
            pause = SHORTEST
            began = time.monotonic()
            reply = self.answer(message)
            try:
                connection.send(reply, time.monotonic() - began)
            except ObjectPushError as error:
                log.warning("an answer was not taken: %s", error)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != RUN_IS_OVER:
                    raise
                log.warning("an answer was not taken: the run is over")

    def answer(self, message: Message) -> Message:
        """Carry a message out."""
        kind = message.metadata.message_type
        try:
            if kind == MessageType.TRAIN:
                return Message(
                    record_of(self._handle(content_of(message.content), deadline(message))), reply_to=message
                )
            if kind == MessageType.QUERY:
                return introduction(self._site, message)
            fault = f"a message of the kind '{kind}' is nothing that a site carries out"
        except (DecryptionError, KeyError, TypeError) as error:
            fault = str(error)
        log.warning("a message is refused: %s", printable(fault))
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, printable(fault)), reply_to=message)

    def _say_apart(self, words: str) -> None:
        """Say why the server is not to be had: once all rounds are complete, there is nothing wrong with that."""
        if is_finished(self._site.latest()):
            self._say("the server has ended; this site may be stopped, or wait for another run")
        else:
            self._say(words, is_fault=True)

    def _say(self, words: str, is_fault: bool = False) -> None:
        if words != self._told:
            self._told = words
            self._tell(words)
            state = {"words": words, "is_fault": is_fault, "time": time.time()}
            write_atomically(self._site.words, json.dumps(state).encode())


def main() -> None:
    """Be the node of the site that the environment names."""
    from fedfomo.deployment.site_client import Worker

    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise SystemExit  # what is under way is not waited for; where the exception is lost, the event is not

    signal.signal(signal.SIGTERM, end)
    site = SiteFolder(Path(os.environ[SITE_VARIABLE]))
    name = site.card().name

    def tell(words: str) -> None:
        log.info("%s", words)
        sys.stdout.write(f"{name}: {printable(words)}\n")
        sys.stdout.flush()

    worker = Worker.here(tell)
    logging.getLogger("flwr").handlers.clear()  # what Flower has to say goes into the site's log
    ResidentNode(site, worker.handle, tell, stop).run()


if __name__ == "__main__":
    with ends_in_one_line():
        main()
