"""Origins of web addresses, such as http://127.0.0.1:3000."""

import re

ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")


def is_origin(text: str) -> bool:
    """Return whether this is an origin: a scheme, a host and perhaps a port, without a path."""
    return ORIGIN.fullmatch(text) is not None
