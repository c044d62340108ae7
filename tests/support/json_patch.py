"""A JSON patch (RFC 6902) applied, as the API server does it to what webhooks answer."""

import copy


def apply(document, operations):
    """Return *document* after *operations*: add, remove, replace and test."""
    changed = copy.deepcopy(document)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        parent = changed
        for name in parents:
            parent = parent[int(name) if isinstance(parent, list) else name]
        place = last
        if isinstance(parent, list):
            place = len(parent) if last == "-" else int(last)
        match operation["op"]:
            case "add" if isinstance(parent, list):
                parent.insert(place, operation["value"])
            case "add" | "replace":
                parent[place] = operation["value"]
            case "remove":
                del parent[place]
            case "test":
                assert parent[place] == operation["value"]
    return changed
