"""A griffe extension that documents the fields of a class whose docstring does not list them: from `setting()`, from
the comment above or beside a field, or from the `meaning` of the members of an enumeration."""

import enum
import importlib
import re

import griffe

from lmrep.cli.fields import describe_bounds


class RecordFields(griffe.Extension):
    """Adds a section "Attributes" to docstrings."""

    def on_class_members(self, *, cls: griffe.Class, **_) -> None:
        """Called when the members of a class are known."""
        if cls.docstring and "Attributes:" not in cls.docstring.value:
            texts = {name: _text(cls, field) for name, field in cls.members.items()
                     if field.is_attribute and "property" not in field.labels and not name.startswith("_")}
            if any(texts.values()):
                fields = (f"  {name}: {text or '-'}" for name, text in texts.items())
                cls.docstring.value += "\n\nAttributes:\n" + "\n".join(fields)


def _text(cls: griffe.Class, field: griffe.Attribute) -> str:
    value = getattr(importlib.import_module(cls.module.path), cls.name)
    if issubclass(value, enum.Enum):
        return getattr(value[field.name], "meaning", "")
    if bounds := getattr(getattr(value, "__dataclass_fields__", {}).get(field.name), "metadata", {}).get("bounds"):
        limits = describe_bounds(bounds)
        return f"{bounds.help} (default `{field.value.arguments[0]}`{limits and f'; {limits}'})"
    lines = cls.module.filepath.read_text().splitlines()
    default = f" (default `{field.value}`)" if field.name in getattr(value, "_field_defaults", {}) else ""
    comments = re.findall(r"  # (?:noqa: \S+ - )?(.*)", lines[field.lineno - 1])
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        comments.insert(0, line.strip(" #"))
    return " ".join(comments) + default
