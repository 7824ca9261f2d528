"""The version of this program, for the packaging as well."""

VERSION = "0.1.0"
