"""Written by the build; see pyproject.toml."""

VERSION: str
