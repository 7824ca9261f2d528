"""Ids of tool calls that are unique among all conversations of a client."""

import re
import secrets
import string

NUMBERED_ID = re.compile(r"call\d{5,}")
ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9  # the only length that Mistral's chat templates accept


def unique_id(id: str) -> str:
    """Return an id that no other call has, unless the model has written one of its own.

    Calls are numbered within a conversation. Clients run several conversations and tell calls by their ids.
    """
    return "".join(secrets.choice(ID_CHARS) for _ in range(ID_LENGTH)) if NUMBERED_ID.fullmatch(id) else id
