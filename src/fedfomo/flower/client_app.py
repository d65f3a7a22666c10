"""The Flower ClientApp of a site: opens what the server sealed, does it, seals the answer."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedfomo.flower.carriage import NONCE, PROOF, SITE, content_of, record_of
from fedfomo.flower.sealing import Sealer
from fedfomo.flower.settings import SiteFolder

SITE_VARIABLE = "FEDFOMO_SITE"
DATA_VARIABLE = "FEDFOMO_DATA"

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Carry out an order."""
    from fedfomo.flower.site_work import carry_out

    site, sealer = _site()
    _log_to(site)
    card = site.card()
    data = os.environ.get(DATA_VARIABLE)
    order = sealer.open(card.server_seal, content_of(message.content))
    answer = carry_out(site, Path(data) if data else None, order)
    return Message(record_of(sealer.seal(card.server_seal, answer)), reply_to=message)


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server, and prove, which site this is."""
    site, sealer = _site()
    nonce = bytes(message.content.config_records[NONCE][NONCE])  # pyright: ignore[reportArgumentType]
    card = site.card()
    proof = ConfigRecord({SITE: card.name, PROOF: sealer.seal(card.server_seal, nonce)})
    return Message(RecordDict({PROOF: proof}), reply_to=message)


def _site() -> tuple[SiteFolder, Sealer]:
    site = SiteFolder(Path(os.environ[SITE_VARIABLE]))
    return site, Sealer.read(site.seal)


def _log_to(site: SiteFolder) -> None:
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(filename=site.path / "site.log", level=logging.INFO, format=form)
