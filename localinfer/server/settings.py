"""Settings of the server. Options of models and generation are in `localinfer.options`."""

from dataclasses import dataclass
from pathlib import Path

from localinfer.multimodal.access import MediaAccess
from localinfer.version import VERSION

LOOPBACK = "127.0.0.1"
SYSTEM_FINGERPRINT = f"b{VERSION}-localinfer"  # clients of llama-server expect a build that begins with b


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of `localinfer serve`. Times are in seconds, sizes in bytes."""

    host: str = LOOPBACK  # addresses, separated by commas, or the path of a Unix socket
    port: int = 8080
    ssl_cert_file: str = ""  # certificate and key of HTTPS; empty: HTTP
    ssl_key_file: str = ""
    api_keys: tuple[str, ...] = ()  # empty: no key needed
    allowed_hosts: tuple[str, ...] = ()  # accepted in Host besides localhost and numeric addresses
    allowed_origins: tuple[str, ...] = ()  # origins of web pages besides those on loopback; * allows all
    models_max: int = 1  # models that are loaded at the same time; 0: any number
    models_memory: int = 0  # of their weights and KV caches together; 0: what the machine has
    models_autoload: bool = True  # whether a request loads the model that it names
    parallel: int = 1  # slots: requests that are processed at the same time
    sleep_idle_seconds: float = 0.0  # until an idle model is unloaded; 0: it stays
    queue: int = 64  # requests that may wait for a slot; further ones are rejected
    timeout: float = 3600.0  # for one response, including the time in the queue
    has_slots: bool = True  # whether /slots answers
    has_metrics: bool = True  # whether /metrics answers
    has_props: bool = False  # whether POST /props answers
    has_web_ui: bool = True
    web_ui_origins: tuple[str, ...] = ()  # of MCP servers that the web UI may connect to
    slot_save_path: str = ""  # folder of saved slots; empty: they are not saved
    suffix_first: bool = False  # in prompts of /infill
    ping_interval: float = 30.0  # between comments in a silent stream; negative: none
    tags: tuple[str, ...] = ()  # of the models, for clients
    is_verbose: bool = False  # whether responses contain `__verbose`
    pooling: str = ""  # of embeddings; empty: that of the model file
    media_path: str = ""  # folder of images and sounds that requests may name as file:// URLs; empty: none
    allows_media_urls: bool = False  # whether images and sounds are fetched from addresses that requests name
    body_limit: int = 32 << 20  # largest request body
    body_timeout: float = 30.0  # for the whole request body to arrive

    @property
    def media_access(self) -> MediaAccess:
        """Which files and addresses requests may name as images and sounds."""
        return MediaAccess(folder=Path(self.media_path) if self.media_path else None, urls=self.allows_media_urls)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses of `host`, which are separated by commas."""
        return tuple(filter(None, (each.strip() for each in self.host.split(","))))

    @property
    def is_unix_socket(self) -> bool:
        """Whether `host` is the path of a Unix socket. As in llama.cpp, such a path ends with `.sock`."""
        return self.host.endswith(".sock")
