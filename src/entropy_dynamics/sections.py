"""Pydantic with one-line errors: the base class of every config section, method, experiment and claim."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from entropy_dynamics.errors import UserError, nearest

Key = tuple[str | int, ...]
Precision = Literal["float32", "bfloat16"]
LARGEST = 2**31 - 1  # as a seed: with more than ten digits, Snakemake may take repeated ones for a recursive wildcard
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
Share = Annotated[float, Field(gt=0, le=1)]
ZeroToOne = Annotated[float, Field(ge=0, le=1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST)]
Threshold = Annotated[float, Field(gt=0, allow_inf_nan=True)]  # inf: never


def path_digits(temperature: float) -> float:
    """Samples at a temperature are in a folder such as T0.7, so that two are equal if these digits are."""
    return float(f"{abs(temperature):g}")


Temperature = Annotated[float, Field(ge=0), AfterValidator(path_digits)]  # 0 is greedy
PER_MACHINE = "per machine"  # marks keys that machine.yaml may set: they affect results only by rounding
LOCATION = "location"  # marks paths that machine.yaml may also set: they replace data or a model


class Section(BaseModel):
    """A mapping of known keys. An unknown key is an error whose message suggests the nearest known one."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                hint = nearest(str(key), cls.model_fields)
                raise PydanticCustomError("unknown_key", "unknown key {key}{hint}", {"key": key, "hint": hint})
        return data


S = TypeVar("S", bound=BaseModel)


class OneOf:
    """Annotation of a field whose section is selected by its entry `key`: `Annotated[Base, OneOf("source", kinds)]`.

    `kinds(value)` maps this value of that entry, and perhaps others, to its section class; `kinds(None)` maps all.
    It is called on first use, so that a config can be loaded without importing classes that it does not name.
    """

    def __init__(self, key: str, kinds: Callable[[str | None], Mapping[str, type[BaseModel]]]):
        self.key, self.kinds = key, kinds

    def _validate(self, value: Any) -> BaseModel:
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("mapping", "Input should be a mapping of keys to values")
        chosen = str(value.get(self.key))
        kinds = self.kinds(chosen)
        if chosen not in kinds:
            text = f"unknown {self.key} {value.get(self.key)!r}{nearest(chosen, kinds)}"
            raise PydanticCustomError("unknown_kind", "{text}", {"text": text})
        return kinds[chosen].model_validate(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        dump = core_schema.plain_serializer_function_ser_schema(lambda section: section.model_dump())
        return core_schema.no_info_plain_validator_function(self._validate, serialization=dump)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(kind.__pydantic_core_schema__) for kind in self.kinds(None).values()]}


def parse(kind: type[S], data: Any, where: str | Callable[[Key], str]) -> S:
    """Validate `data` as a `kind`.

    Raises UserError if it is invalid, in one line with the file, the key, its value and what it should be. The file is
    `where`: a name, or a function from a key to the file that set it.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors()[0]
    key, message = details["loc"], details["msg"]
    if details["type"] == "unknown_key":  # pydantic's location is the section's
        key = (*key, details["ctx"]["key"])
    file = where if isinstance(where, str) else where(key)
    name, value = dotted(key), details["input"]
    match details["type"]:
        case "missing":
            text = f"no value for {name}"
        case "unknown_key":
            text = f"unknown key {name!r}{details['ctx']['hint']}"
        case "unknown_kind" | "value_error":
            message = message.removeprefix("Value error, ")
            text = f"{name}: {message}" if name else message
        case _:
            if details["type"] in ("dict_type", "model_type", "model_attributes_type"):
                message = "Input should be a mapping of keys to values"
            text = f"{name or 'the content'} is {value!r:.60}; it {message.partition(' ')[2]}"
    raise UserError(" ".join((f"{file}: {text}" if file else text).split()))


def dotted(key: Key) -> str:
    """('toy_models', 'qwen2.5', 'terms', 0) -> 'toy_models[qwen2.5].terms[0]'."""
    text = ""
    for part in key:
        plain = isinstance(part, str) and "." not in part
        text += (f".{part}" if text else str(part)) if plain else f"[{part}]"
    return text
