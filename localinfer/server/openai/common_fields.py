"""Fields that the requests for chat and text completions share."""

from dataclasses import dataclass

from localinfer.options import Layer
from localinfer.server.http.api_errors import field_error
from localinfer.server.requests.request_fields import Fields, get, get_int

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFields:
    """The shared fields of a request. `n` is the number of choices for each prompt."""

    model_name: str | None
    options: Layer
    n: int
    stream: bool
    include_usage: bool
    slot: int  # the preferred one; negative: any
    reports_prefill: bool
    timings_per_token: bool
    is_verbose: bool

    def options_for(self, choice: int) -> Layer:
        """Return the options of a choice. Each choice has its own seed, so that they differ."""
        seed = self.options.get("seed", -1)
        if choice == 0 or not isinstance(seed, int) or seed < 0:
            return self.options
        return self.options | {"seed": (seed + choice) % 2**64}


def parse_common_fields(fields: Fields, options: Layer) -> CommonFields:
    """Parse the shared fields. Raises APIError (400) for an invalid one."""
    n, best_of = get_int(fields, "n", 1, 1, MAX_CHOICES), get(fields, "best_of", int, 1)
    if best_of > n:
        raise field_error("best_of", "must not exceed n; ranking of choices is not supported")
    streaming = get(fields, "stream_options", dict, {})
    return CommonFields(
        model_name=get(fields, "model", str, "") or None,
        options=options,
        n=n,
        stream=get(fields, "stream", bool, False),
        include_usage=bool(streaming.get("include_usage")),
        slot=get(fields, "id_slot", int, -1),
        reports_prefill=get(fields, "return_progress", bool, False),
        timings_per_token=get(fields, "timings_per_token", bool, False),
        is_verbose=get(fields, "verbose", bool, False),
    )
