"""Classes and files of methods: names, parameters, what the trainer is told, and mistakes in them."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from conftest import ROOT
from entropy_dynamics.config import known_names
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, load_method, method, method_types
from method_contracts import contracts, declared
from mistakes import mistake


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("clip_c", {}, "unknown method 'clip_c'; did you mean 'clip_"),
        ("clip_v", {"max_fraction": 0.1}, "method clip_v: unknown key 'max_fraction'; did you mean 'max_frac'"),
        ("grpo", {"mu": 1.0}, "method grpo: unknown key 'mu'; known: "),
        ("s_star_keep_pos_gt", {"mode": "mask"}, "unknown key 'mode'"),
        ("clip_b", {"mu": -1.0}, "mu is -1.0"),
        ("clip_v", {"max_frac": 1.5}, "max_frac is 1.5"),
        ("clip_b", {"share": 0.0}, "method clip_b: share is 0.0; it should be greater than 0"),
        ("clip_v", {"share": 2}, "share is 2; it should be less than or equal to 1"),
        ("clip_b", {"share": 0.02, "mu": 2.5}, "method clip_b: give share or mu, not both: share replaces mu, mu_plus"),
        ("random_mask_v", {"share": 0.02, "max_frac": 0.1}, "method random_mask_v: give share or max_frac, not both: "),
        ("clip_b_paper", {"share": 0.02, "mu_plus": None}, "give share or mu_plus, not both"),
        ("clip_b", {"mu": None}, "mu is null; it should be a number, unless share is given"),
        ("clip_b", {"apply_to": "neg"}, "apply_to is 'neg'; it should be 'negative', 'positive' or 'both'"),
        ("clip_cov", {"ratio": 0.0}, "ratio is 0.0; it should be greater than 0"),
        ("kl_cov", {"beta": math.inf}, "beta is inf; it should be a finite number"),
        ("unlikeliness", {"shape_constant_groups": "no"}, "it should be a valid boolean"),
        ("forking_tokens", {"keep_fraction": 20}, "keep_fraction is 20"),
        ("rsi_s", {"low": 3.0}, "low is 3.0; it should be below high (3.0)"),
    ],
)
def test_bad_names_and_values(name, params, message):
    with mistake(message):
        load_method(name, **params)


CONFIGS = ROOT / "configs"


def test_what_methods_tell_the_trainer():
    """Which compute weights before every update, and what their code reads."""
    methods = {name: load_method(name) for name in method_types()}
    assert {name for name, method in methods.items() if method.per_update} == {
        *("clip_cov", "kl_cov", "forking_tokens", "repo_r", "steer", "rsi_s", "ce_gppo_authors", "simko"),
        "random_positive",
    }
    assert {name for name, method in methods.items() if not method.needs_scores(1)} == {
        *("grpo", "dr_grpo", "pass_at_k", "qae", "cispo", "gspo", "dppo", "ce_gppo", "entropy_bonus"),
        *("adaptive_entropy", "asym_grpo", "dppo_authors", "qae_authors", "score_centering", "reference_kl"),
    }
    assert all(method.needs_scores(2) for method in methods.values())
    with_entropy = {"entropy_bonus", "adaptive_entropy", "w_reinforce_authors", "nsr_authors", "psr_authors"}
    assert {name for name, method in methods.items() if method.uses_entropy()} == with_entropy


def test_the_defaults_are_the_released_values():
    """Scales with toy models override them: mu does not carry over between scales."""
    assert load_method("clip_b").mu == 2.5
    assert load_method("clip_v").mu == 8.5
    assert load_method("clip_v").max_frac == 1e-4


def test_what_a_method_inherits_counts_as_its_own():
    class Quieter(type(load_method("entropy_bonus"))):
        def token_loss(self, *arguments, **named):
            return 0.5 * super().token_loss(*arguments, **named)

    assert Quieter().uses_entropy()
    assert Quieter().acts_without_advantage


@pytest.mark.parametrize("name", sorted(method_types()))
def test_a_method_declares_what_it_reads_and_where_it_acts(name):
    assert contracts(load_method(name)) == declared(load_method(name))


@pytest.mark.parametrize(
    ("name", "params", "observed"),
    [
        ("adaptive_entropy", {}, {"sampled_entropy": 0.3}),
        ("entrocraft", {}, {"step": 4}),
        ("repo_r", {"target": 0.3}, {"entropy": 0.5}),
    ],
)
def test_the_state_of_a_method_is_restored(name, params, observed):
    """From the numbers that a checkpoint holds, with their types."""
    used, restored, fresh = (load_method(name, **params) for _ in range(3))
    used.observe(observed)
    restored.load_state_dict(json.loads(json.dumps(used.state_dict())))
    assert restored.__pydantic_private__ == used.__pydantic_private__ != fresh.__pydantic_private__
    states = [one.__pydantic_private__.values() for one in (restored, used)]
    assert [*map(type, states[0])] == [*map(type, states[1])]


def test_a_copied_file_does_not_replace_a_method():
    with mistake("method 'grpo' is registered twice: in entropy_dynamics.methods.grpo and in "):

        @method("grpo")
        class Copied(Method):
            pass

    assert type(load_method("grpo")).__module__ == "entropy_dynamics.methods.grpo"


@pytest.mark.parametrize(
    ("returned", "message"),
    [(np.ones((1, 2)), "ndarray, not a tensor [1, 2]"), (torch.ones(1), "[1], not a tensor [1, 2]")],
)
def test_what_are_no_weights_is_named(returned, message):
    class Wrong(Method):
        def token_weights(self, *_, **__):
            return returned

    with mistake(f"token_weights of Wrong returned {message}"):
        Wrong().checked_weights(TokenStats(*torch.zeros(4, 1, 2)), torch.ones(1, 2), torch.ones(1, 2))


def test_every_method_has_a_file():
    assert set(known_names("method", CONFIGS)) >= {"base", *method_types()}


def test_the_paper_does_not_need_the_field(tmp_path):
    """A broken module of another paper's method: the paper's methods load, the field's say what is wrong."""
    package = shutil.copytree(ROOT / "src/entropy_dynamics", tmp_path / "entropy_dynamics")
    (package / "methods/field/broken.py").write_text("import no_such_module\n")
    program = """
from entropy_dynamics.config import load_config
from entropy_dynamics.methods import load_method
load_method("grpo")
load_config("smoke", "qwen2.5-7b-instruct", "clip_b")
print("loaded")
load_method("gspo")
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
