"""Configuration: `schema` defines the keys, `merging` merges the files. Imports torch only if a method is named."""

from entropy_dynamics.config.merging import (
    CONFIGS,
    Selection,
    configured_shorter_runs,
    flatten,
    known_names,
    load_config,
    method_label,
    read_yaml,
    scale_names,
    settings_of,
    shorter_runs,
    split_method,
    stored_as,
    to_yaml,
)
from entropy_dynamics.config.schema import Config, RunConfig, StageConfig
from entropy_dynamics.config.schema.data import TRAIN
from entropy_dynamics.config.schema.training import BASE

__all__ = [
    "BASE",
    "CONFIGS",
    "TRAIN",
    "Config",
    "RunConfig",
    "Selection",
    "StageConfig",
    "configured_shorter_runs",
    "flatten",
    "known_names",
    "load_config",
    "method_label",
    "read_yaml",
    "scale_names",
    "settings_of",
    "shorter_runs",
    "split_method",
    "stored_as",
    "to_yaml",
]
