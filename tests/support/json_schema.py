"""Validation against a JSON Schema."""


def check(schema, value, draft="Draft202012"):
    """Raise jsonschema's ValidationError if *value* does not obey *schema*.

    The import is here, since it takes a second, and most processes that collect tests run none
    that validates.
    """
    import jsonschema

    getattr(jsonschema, f"{draft}Validator")(schema).validate(value)


def accepts(schema, value, draft="Draft202012"):
    """Return whether *value* obeys *schema*."""
    import jsonschema

    return getattr(jsonschema, f"{draft}Validator")(schema).is_valid(value)
