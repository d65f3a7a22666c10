"""What `deploy status` knows, as Prometheus reads it: over HTTP, on this machine alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedfomo.errors import InputError, require

HELP = {
    "rounds_done": "Rounds that are complete.",
    "rounds": "Rounds of the federation.",
    "rounds_answered": "Rounds that this site has answered.",
    "asked": "Sites that were asked in the last round.",
    "answered": "Sites that answered it.",
    "faults": "Sites that did not answer it well.",
    "refused": "Sites whose upload was refused in it.",
    "seconds": "Seconds that it took.",
    "bytes_sent": "Bytes that were sent in it.",
    "bytes_received": "Bytes that were received in it.",
    "since": "When a round was complete last, in seconds since 1970.",
    "is_finished": "1 once all rounds are complete.",
    "is_running": "1 while a process of this site runs.",
    "problems": "Things that somebody should look after; 0 is well.",
}


def exposition(facts: Mapping[str, Any]) -> str:
    """Write facts in the text format of Prometheus: numbers as they are, lists and tables by their lengths."""
    lines: list[str] = []
    for name, words in HELP.items():
        value = facts.get(name)
        if value is None:
            continue
        number = value if isinstance(value, int | float) else len(value)
        lines += [f"# HELP fedfomo_{name} {words}", f"# TYPE fedfomo_{name} gauge", f"fedfomo_{name} {float(number)!r}"]
    return "\n".join(lines) + "\n"


@contextmanager
def metrics_endpoint(port: int, facts: Callable[[], Mapping[str, Any]]) -> Generator[int]:
    """Serve /metrics on this machine's loopback address, and yield the port; 0 takes any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/metrics"
            content = exposition(facts()).encode() if is_known else b""
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: it is asked every few seconds."""

    with _listen(port, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    require(0 <= port <= 65535, f"--metrics must be a port, 1 to 65535, or 0 for none, not {port}")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        reason = f"port {port} of 127.0.0.1 cannot be used ({error.strerror})"
        raise InputError(f"{reason}: give --metrics another, or stop what uses it") from error
