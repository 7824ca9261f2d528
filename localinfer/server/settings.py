"""What can be chosen about the server itself; what concerns models and answers is in `localinfer.options`."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are in seconds, sizes in bytes."""

    host: str = LOOPBACK  # or the path of a Unix socket
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # none: whoever can connect may ask
    allowed_hosts: tuple[str, ...] = ()  # names of this machine, beside localhost and bare addresses
    allowed_origins: tuple[str, ...] = ()  # of web pages, beside those on this machine; * allows all
    models_max: int = 1  # in memory at a time
    parallel: int = 1  # requests that are answered at a time
    queue: int = 64  # requests that wait; more are sent away
    timeout: float = 3600.0  # of one answer, with the time that it waited
    body_limit: int = 16 << 20
    body_timeout: float = 30.0  # until a request is here as a whole

    @property
    def is_path(self) -> bool:
        """Whether `host` is the path of a socket: as in llama.cpp, by its ending."""
        return self.host.endswith(".sock")
