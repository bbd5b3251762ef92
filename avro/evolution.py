"""May a schema follow another? Both directions: an old reader on new records, a new reader on old ones."""

from typing import Any


def problems(old: Any, new: Any, path: str = "") -> list[str]:
    """What forbids `new` as the successor of `old` (raw schema JSON); empty: allowed.

    Readers decode with the writer's schema and take fields by name (codec), so a record may gain optional fields and
    must keep the type and, for the heads that are read alone, the order of those that it has.
    """
    if isinstance(old, list) and isinstance(new, list):
        if len(new) < len(old):
            return [f"{path}: union branches were removed"]
        return [p for i, branch in enumerate(old) for p in problems(branch, new[i], f"{path}[{i}]")]
    if isinstance(old, dict) and isinstance(new, dict) and old.get("type") == new.get("type"):
        if old["type"] == "record":
            return _record_problems(old, new, f"{path}.{old['name']}" if path else old["name"])
        if old["type"] in ("array", "map"):
            key = "items" if old["type"] == "array" else "values"
            return problems(old[key], new[key], f"{path}.{key}")
    return [] if old == new else [f"{path}: the type changed from {old} to {new}"]


def _record_problems(old: dict[str, Any], new: dict[str, Any], path: str) -> list[str]:
    found = [f"{path}: renamed to {new['name']}"] if old["name"] != new["name"] else []
    old_fields = {f["name"]: f for f in old["fields"]}
    new_fields = {f["name"]: f for f in new["fields"]}
    for name, field in old_fields.items():
        if name not in new_fields:
            found.append(f"{path}.{name}: removed, which an old reader does not survive")
        else:
            found += problems(field["type"], new_fields[name]["type"], f"{path}.{name}")
    found += [
        f"{path}.{name}: added without a default"
        for name, f in new_fields.items()
        if name not in old_fields and "default" not in f
    ]
    if [n for n in new_fields if n in old_fields] != [n for n in old_fields if n in new_fields]:
        found.append(f"{path}: the order of the old fields changed")
    return found
