"""The version of localinfer, also used by the packaging."""

VERSION = "0.1.0"
