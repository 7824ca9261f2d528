"""Settings of the server. Options of models and generation are in `localinfer.options`."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `localinfer serve`. Times are in seconds, sizes in bytes."""

    host: str = LOOPBACK  # an address, or the path of a Unix socket
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # empty: no key needed
    allowed_hosts: tuple[str, ...] = ()  # accepted in Host besides localhost and numeric addresses
    allowed_origins: tuple[str, ...] = ()  # origins of web pages besides those on loopback; * allows all
    models_max: int = 1  # models that are loaded at the same time
    parallel: int = 1  # slots: requests that are processed at the same time
    queue: int = 64  # requests that may wait for a slot; further ones are rejected
    timeout: float = 3600.0  # for one response, including the time in the queue
    pooling: str = ""  # of embeddings; empty: that of the model file
    body_limit: int = 16 << 20  # largest request body
    body_timeout: float = 30.0  # for the whole request body to arrive

    @property
    def is_unix_socket(self) -> bool:
        """Whether `host` is the path of a Unix socket. As in llama.cpp, such a path ends with `.sock`."""
        return self.host.endswith(".sock")
