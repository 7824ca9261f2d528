"""The command `localinfer serve`: an HTTP server."""

import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments.flags import PoolingOption, with_options
from cli.models.loading import model_loader, require_known_model
from cli.server.hub_presets import HubPresets, find_hub_presets
from cli.server.model_list import DEFAULT_PARALLEL, DEFAULT_UBATCH_SIZE, ModelList, with_defaults
from cli.server.presets import NO_PRESETS, names, read_presets
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.options import Layer
from localinfer.server.http.origins import is_origin
from localinfer.server.settings import Settings

DEFAULTS = Settings()
REQUIRED_PACKAGES = ("starlette", "uvicorn", "httptools")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Where the server listens, and which web pages may use it."""

    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS,...", help="Addresses to listen on, separated by commas. 0.0.0.0 accepts "
            "connections from the network; a name that ends in .sock is the path of a Unix socket.",
        ),
    ] = DEFAULTS.host
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to listen on (0: any free port).")
    ] = DEFAULTS.port
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Accept requests with this Host header; may be repeated."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="ORIGIN", help="Allow CORS requests from this origin (*: all)."),
    ] = None  # fmt: skip
    ssl_cert_file: Annotated[
        Path | None, typer.Option("--ssl-cert-file", metavar="FILE", help="Certificate (PEM): the server speaks HTTPS.")
    ] = None
    ssl_key_file: Annotated[
        Path | None, typer.Option("--ssl-key-file", metavar="FILE", help="Private key of the certificate (PEM).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The API keys of clients."""

    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", help="Require this API key; may be repeated. "
            "LOCALINFER_API_KEY keeps it out of the process list.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="Read API keys from a file, one per line.")
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """What the endpoints answer."""

    pooling: PoolingOption = None
    slots: Annotated[bool, typer.Option("--slots/--no-slots", help="Answer at /slots.")] = DEFAULTS.has_slots
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Answer at /metrics.")] = DEFAULTS.has_metrics
    props: Annotated[
        bool, typer.Option("--props", help="Answer at POST /props, which changes nothing, as in llama-server.")
    ] = DEFAULTS.has_props
    ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the web UI.")] = DEFAULTS.has_web_ui
    webui_connect: Annotated[
        list[str] | None, typer.Option(
            "--webui-connect", metavar="ORIGIN", help="Let the web UI connect to MCP servers of this origin; may be "
            "repeated.")
    ] = None
    slot_save_path: Annotated[
        Path | None, typer.Option("--slot-save-path", metavar="DIR", help="Folder of the KV caches that clients save.")
    ] = None
    spm_infill: Annotated[
        bool, typer.Option("--spm-infill", help="Put the suffix before the prefix in prompts of /infill.")
    ] = DEFAULTS.suffix_first
    sse_ping_interval: Annotated[
        float, typer.Option(
            "--sse-ping-interval", metavar="SECONDS", help="Time between comments in a silent stream (-1: none).")
    ] = DEFAULTS.ping_interval
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Add __verbose, with the prompt, to answers of a chat.")
    ] = DEFAULTS.is_verbose  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MediaOptions:
    """Which files and addresses requests may name as images and sounds, besides sending them."""

    media_path: Annotated[
        Path | None,
        typer.Option(
            "--media-path", metavar="DIR", help="Folder of images and sounds that requests may name as file:// URLs, "
            "relative to it."),
    ] = None
    allow_media_urls: Annotated[
        bool, typer.Option("--allow-media-urls", help="Fetch images and sounds from addresses that requests name.")
    ] = DEFAULTS.allows_media_urls  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits of the server."""

    models_max: Annotated[
        int,
        typer.Option("--models-max", min=0, metavar="N", help="Maximum number of models in memory (0: any number)."),
    ] = DEFAULTS.models_max
    models_memory: Annotated[
        str | None,
        typer.Option(
            "--models-memory", metavar="SIZE", help="Maximum memory of all models, weights and KV caches, such "
            "as 8G or 500M. [default: what the machine has]"),
    ] = None  # fmt: skip
    models_autoload: Annotated[
        bool, typer.Option(
            "--models-autoload/--no-models-autoload", help="Load a model when a request names it; otherwise only "
            "/models/load does.")
    ] = DEFAULTS.models_autoload  # fmt: skip
    sleep_idle_seconds: Annotated[
        float | None, typer.Option(
            "--sleep-idle-seconds", metavar="SECONDS", help="Unload a model after this time without requests; the next "
            "one loads it again (-1: never). [default: -1]")
    ] = None  # fmt: skip
    queue: Annotated[
        int, typer.Option("--queue", min=0, metavar="N", help="Maximum number of queued requests; more are rejected.")
    ] = DEFAULTS.queue
    timeout: Annotated[
        float, typer.Option("-to", "--timeout", min=0.1, metavar="SECONDS", help="Maximum duration of a request.")
    ] = DEFAULTS.timeout


@dataclass(frozen=True, kw_only=True)
class NamingOptions:
    """Which models there are besides the arguments, and what clients call them."""

    alias: Annotated[
        str | None,
        typer.Option("-a", "--alias", metavar="NAME,...", help="Model name in the API, with a single MODEL."),
    ] = None
    tags: Annotated[
        str, typer.Option("--tags", metavar="TAG,...", help="Tags of the models in /v1/models, without effect.")
    ] = ""
    models_dir: Annotated[
        Path | None, typer.Option("--models-dir", metavar="DIR", help="Also serve the models in a directory.")
    ] = None
    models_preset: Annotated[
        Path | None,
        typer.Option("--models-preset", metavar="FILE", help="Also serve the models of an INI file, with its options."),
    ] = None


@with_options(
    "model", "sampling", "generation", "diffusion", "structured", "speculative", "draft", "media", "adapters", "chat",
    defaults={"ubatch_size": DEFAULT_UBATCH_SIZE, "parallel": DEFAULT_PARALLEL},
)  # fmt: skip
def serve_command(
    context: typer.Context,
    given: Layer,
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="GGUF files, model names, or directories of models. [default: all on this machine]",
        ),
    ] = None,
    naming: NamingOptions,
    network: NetworkOptions,
    keys: KeyOptions,
    limits: LimitOptions,
    endpoints: EndpointOptions,
    media: MediaOptions,
) -> None:
    """Run an OpenAI-compatible HTTP server.

    The server also has the endpoints of llama-server and Ollama, and a web UI. A single model is loaded at once;
    several are loaded when they are first requested, or by /models/load. After Ctrl-C or SIGTERM, the server gives
    running requests two seconds to finish; a second Ctrl-C stops them.

    \b
    Examples:
      localinfer serve
      localinfer serve smollm2 --port 8000
      localinfer serve models/ --models-max 2 --sleep-idle-seconds 600
      localinfer serve a.gguf b.gguf --api-key secret --host 0.0.0.0
      curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
    """
    require_extra()
    listed = list_models(models or [], naming, given, context)
    settings = replace(
        merged_settings(network, limits, endpoints), **media_settings(media),
        api_keys=read_api_keys(keys.api_key, keys.api_key_file), parallel=listed.n_slots,
        pooling=endpoints.pooling or "", tags=names(naming.tags))  # fmt: skip
    from localinfer.server import run
    from localinfer.server.app import create_app
    from localinfer.server.models.model_cache import ModelCache
    from localinfer.server.startup import Startup

    run.require_certificate(settings)
    catalog = listed.catalog()
    n_first = sum(each.load_on_startup for each in catalog.all())
    if 0 < settings.models_max < n_first:
        raise UsageError(f"load-on-startup: {n_first} models are more than --models-max {settings.models_max}")
    model_cache = ModelCache(catalog, model_loader(with_defaults(given)))

    def load_only_model() -> None:
        [only] = catalog.all()
        model_cache.required_bytes(only, settings.models_memory)
        model_cache.get(only)

    startup = Startup(load_only_model if catalog.is_single else None)
    with run.listening(settings) as opened:
        port = 0 if settings.is_unix_socket else opened[0].getsockname()[1]
        app = create_app(model_cache, settings, startup)
        run.serve(app, opened, settings, startup, lambda: print_address(settings, port))


def list_models(models: list[str], naming: NamingOptions, given: Layer, context: typer.Context) -> ModelList:
    """Return the models that the options name. Raises UsageError, and ModelNotFoundError for one that is missing."""
    directories = [Path(each) for each in models if is_directory(each)]
    sources = [each for each in models if not is_directory(each)]
    if (naming.alias and len(models) + (naming.models_dir is not None) != 1) or (naming.alias and directories):
        raise UsageError("--alias: requires exactly one MODEL")
    path = naming.models_preset
    if len(models) == 1 and sources and not path and (found := find_hub_presets(sources[0])):
        return hub_model_list(found, naming, given, context)
    if len(sources) > 1 or directories:
        for each in sources:
            require_known_model(each)
    return ModelList(
        sources=sources, directories=[*directories, *filter(None, (naming.models_dir,))], given=given,
        read_presets=lambda: read_presets(path, context) if path else NO_PRESETS,
        aliases=names(naming.alias or ""), tags=names(naming.tags), serves_all=not models,
    )  # fmt: skip


def hub_model_list(found: HubPresets, naming: NamingOptions, given: Layer, context: typer.Context) -> ModelList:
    """Return the models of the presets in a repository of the hub. Raises UsageError."""
    if naming.alias:
        raise UsageError("--alias: the repository has presets, whose sections name the models")
    screen.note(f"options come from {screen.one_line(found.title)}")
    return ModelList(
        sources=[], directories=[*filter(None, (naming.models_dir,))], given=given, tags=names(naming.tags),
        read_presets=lambda: found.read(context),
    )  # fmt: skip


def is_directory(source: str) -> bool:
    """Return whether an argument is a directory of models, and not the name of a model."""
    from localinfer.hub.resolve import model_registry

    return source not in model_registry().entries and Path(source).is_dir()


def merged_settings(network: NetworkOptions, limits: LimitOptions, endpoints: EndpointOptions) -> Settings:
    """Return the settings that these options make. Raises UsageError for options that contradict each other."""
    if bool(network.ssl_cert_file) != bool(network.ssl_key_file):
        raise UsageError("--ssl-cert-file: needs --ssl-key-file, and the other way round")
    if endpoints.slot_save_path is not None and not endpoints.slot_save_path.is_dir():
        raise UsageError(f"--slot-save-path: {printable(str(endpoints.slot_save_path))}: is not a folder")
    for origin in endpoints.webui_connect or ():
        if not is_origin(origin):
            raise UsageError(f"--webui-connect: {printable(origin)}: is not an origin such as http://127.0.0.1:3000")
    return Settings(
        host=network.host, port=network.port, allowed_hosts=tuple(network.allow_host or ()),
        allowed_origins=tuple(origin.strip() for each in network.allow_origin or () for origin in each.split(",")),
        ssl_cert_file=str(network.ssl_cert_file or ""), ssl_key_file=str(network.ssl_key_file or ""),
        models_max=limits.models_max, models_memory=parse_memory(limits.models_memory),
        models_autoload=limits.models_autoload, queue=limits.queue, timeout=limits.timeout,
        sleep_idle_seconds=max(0.0, limits.sleep_idle_seconds or 0.0), has_slots=endpoints.slots,
        has_metrics=endpoints.metrics, has_props=endpoints.props, has_web_ui=endpoints.ui,
        slot_save_path=str(endpoints.slot_save_path or ""), suffix_first=endpoints.spm_infill,
        ping_interval=endpoints.sse_ping_interval, is_verbose=endpoints.verbose,
        web_ui_origins=tuple(endpoints.webui_connect or ()),
    )  # fmt: skip


def media_settings(media: MediaOptions) -> dict[str, Any]:
    """Return the settings of images and sounds. Raises UsageError for a folder that does not exist."""
    if media.media_path is not None and not media.media_path.is_dir():
        raise UsageError(f"--media-path: {printable(str(media.media_path))}: is not a folder")
    return {"media_path": str(media.media_path or ""), "allows_media_urls": media.allow_media_urls}


def parse_memory(text: str | None) -> int:
    """Return a size such as 8G or 500M in bytes, 0 for none. Raises UsageError."""
    if text is None:
        return 0
    match = MEMORY.fullmatch(text.strip())
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if size <= 0:
        raise UsageError(f"--models-memory: must be a size such as 8G or 500M, not {printable(text, 40)}")
    return size


def read_api_keys(given: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """Return the accepted API keys. Raises UsageError for an empty key, or a file that is unreadable or has no key."""
    if given is None and file is None and "LOCALINFER_API_KEY" in os.environ:
        given = [os.environ["LOCALINFER_API_KEY"]]
    if not all(map(str.strip, given or ())):
        raise UsageError("--api-key: is empty")
    if file is None:
        return tuple(given or ())
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--api-key-file: {printable(str(file))}: {what}") from None
    if not any(lines):
        raise UsageError(f"--api-key-file: {printable(str(file))}: contains no key")
    return (*(given or ()), *filter(None, lines))


def url_host(host: str) -> str:
    """Return the host as it is written in a URL: IPv6 addresses stand in brackets."""
    return f"[{host}]" if ":" in host else host


def require_extra() -> None:
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve: requires {' and '.join(missing)}: python -m pip install {' '.join(missing)}")


def print_address(settings: Settings, port: int) -> None:
    if settings.is_unix_socket:
        screen.note(f"listening on unix:{settings.host}")
        return
    scheme = "https" if settings.ssl_cert_file else "http"
    screen.note(f"listening on {' '.join(f'{scheme}://{url_host(host)}:{port}' for host in settings.hosts)}")
    is_here = all(host in ("localhost", "::1") or host.startswith("127.") for host in settings.hosts)
    if not is_here and not settings.api_keys:
        screen.warn("anyone who can reach this port can use the server; --api-key requires a key")
