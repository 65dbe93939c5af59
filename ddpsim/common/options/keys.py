"""Options as keys of a YAML file: fields of a pydantic model, made from the options' declarations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, create_model

from ddpsim.common.documents.errors import document_error
from ddpsim.common.errors import InputError
from ddpsim.common.options.option import Declared, list_declared

Model = TypeVar("Model", bound=BaseModel)


def with_options(
    base: type[Model],
    kind: type,
    *,
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    keys: Mapping[str, str] | None = None,
) -> type[Model]:
    """Return `base` with one more key for each option of the dataclass `kind`, whose own keys win.

    A value is what Python takes, or text as on the command line. Each other name of an option is a key of it too.

    Args:
        base: a model with the keys of the file that are no options.
        kind: the dataclass of options.
        without: its fields that are no keys.
        defaults: by field, defaults that differ from those of `kind`.
        keys: by field, the preferred key of an option; else the name that people write.
    """
    taken = {*base.model_fields, *without}
    fields: dict[str, Any] = {}
    for each in list_declared(kind):
        if each.field in taken:
            continue
        key = (keys or {}).get(each.field) or _key(each)
        others = [name for name in (_key(each), each.field, *each.option.also) if name != key]
        alias = AliasChoices(key, *dict.fromkeys(others)) if others else None
        default = (defaults or {}).get(each.field, each.default)
        fields[key] = (_annotation(each), Field(default, validation_alias=alias))
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, __module__=base.__module__, **fields)


def values_of(model: BaseModel, kind: type) -> dict[str, Any]:
    """Return the values of the options of `kind` in a model made by `with_options`, by field."""
    names = {name: each for each in list_declared(kind) for name in (_key(each), each.field, *each.option.also)}
    return {names[key].field: getattr(model, key) for key in type(model).model_fields if key in names}


def _key(each: Declared) -> str:
    """Return the key of an option: its name, and of one that a flag switches off, its field, which is true or false."""
    return each.field if each.switched_off else each.name


def _annotation(each: Declared) -> Any:
    """Return the type of a key: strict, but that numbers may be text, as YAML takes 1e-3, and a list be a tuple."""
    loose = each.kind is float or get_origin(each.kind) is tuple
    kind: Any = Annotated[each.kind, Field(strict=False if loose else None, ge=each.option.least)]
    return Annotated[kind | None if each.nullable else kind, BeforeValidator(lambda value: _read(each, value))]


def _read(each: Declared, value: Any) -> Any:
    """Return the value of a text, or of true and false for `on` and `off`; any other value as it is."""
    if isinstance(value, bool) and get_origin(each.kind) is Literal and {"on", "off"} <= {*each.choices}:
        return "on" if value else "off"
    texts = value if each.option.repeated else [value]
    if each.option.parse is None or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    try:
        return each.option.parse(value, _key(each))
    except InputError as error:
        raise document_error(error.message + (f"; {error.remedy}" if error.remedy else "")) from error
