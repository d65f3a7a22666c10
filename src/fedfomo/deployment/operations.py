"""Files for whoever runs a federation: nginx before the server, systemd units, a container image and a compose file."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

from fedfomo.deployment.addresses import host_and_port, spell_address
from fedfomo.deployment.settings import FederationFolder
from fedfomo.io import write_atomically

TEMPLATES = Path(__file__).parent / "templates" / "operations"


def write_operations(folder: FederationFolder, home: Path | None = None) -> None:
    """Write all of them into the federation's folder, for the place that it has or will have."""
    config = folder.config()
    host, port = host_and_port(config.address)
    is_ipv6 = ":" in host
    words = {
        "@FOLDER@": str(home or folder.path),
        "@FEDFOMO@": str(Path(sys.executable).parent / "fedfomo"),
        "@HOST@": f"[{host}]" if is_ipv6 else host,
        "@PORT@": str(port),
        "@OUTSIDE@": f"[::]:{port}" if is_ipv6 else str(port),
        "@LISTEN@": spell_address(*config.reached_on),
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
