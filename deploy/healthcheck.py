"""Ask a server on this machine whether it is ready: exit status 0 if so, else 1. For HEALTHCHECK and exec probes.

Usage: healthcheck.py [METRICS_PORT]; without it DNNSERVE_METRICS_PORT says which, as it does to the server.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from http.client import HTTPException

_DEFAULT_PORT = "8002"
_TIMEOUT_S = 2.0  # below HEALTHCHECK's own, so that a server that hangs is reported in words


def main() -> int:
    """Print what /readyz said and return the exit status."""
    port = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DNNSERVE_METRICS_PORT") or _DEFAULT_PORT
    # Over loopback there is nobody to mistake the server for, and the certificate is for other names.
    anybody = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), anybody)  # no proxy for our own loopback
    for scheme in ("http", "https"):  # the latter with --metrics-tls
        url = f"{scheme}://127.0.0.1:{port}/readyz"
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer:
                print(answer.read().decode().strip())
                return 0
        except urllib.error.HTTPError as error:
            print(f"{url}: {error.code} {error.read().decode().strip()}")
            return 1
        except (ConnectionError, HTTPException) as error:  # what one who speaks TLS makes of HTTP
            print(f"{url}: {error}")
        except OSError as error:
            print(f"{url}: {error}")
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
