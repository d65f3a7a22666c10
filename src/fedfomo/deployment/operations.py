"""Files for whoever runs a federation: nginx before the server, systemd units, a container image and a compose file."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

from fedfomo.deployment.settings import FederationFolder, host_and_port
from fedfomo.io import write_atomically

TEMPLATES = Path(__file__).parent / "templates" / "operations"


def write_operations(folder: FederationFolder) -> None:
    """Write all of them into the federation's folder."""
    config = folder.config()
    host, port = host_and_port(config.address)
    listen_host, listen_port = config.listens_on
    words = {
        "@FOLDER@": str(folder.path),
        "@FEDFOMO@": str(Path(sys.executable).parent / "fedfomo"),
        "@HOST@": host,
        "@PORT@": str(port),
        "@LISTEN@": f"{listen_host}:{listen_port}",
    }
    folder.operations.mkdir(mode=0o700, exist_ok=True)
    for template in TEMPLATES.iterdir():
        content = template.read_text()
        for word, value in words.items():
            content = content.replace(word, value)
        (folder.operations / template.name).write_text(content)
    write_keys(folder)


def write_keys(folder: FederationFolder) -> None:
    """Write the public keys of all sites as nginx compares them; a running one reads them with `nginx -s reload`."""
    keys = [b64encode(site.key.encode()).decode() for site in folder.members()]
    folder.operations.mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder.operations / "keys.map", "".join(f'"{key}" 1;\n' for key in keys).encode())
