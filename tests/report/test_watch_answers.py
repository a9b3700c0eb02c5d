"""`entropy-dynamics watch`: trained policies answer a problem that a reader types."""

import json
import shutil
import subprocess
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages.answers import answer
from preloaded import program
from synthetic_results import MODEL

PROBLEM = {"model": MODEL, "method": "clip_b", "seed": 0, "problem": "9,4,7,3=3"}


@pytest.fixture(scope="module")
def watched(smoke_project, tmp_path_factory):
    """The address of the page of a copy of the smoke scale's results, and their layout."""
    folder = tmp_path_factory.mktemp("results")
    shutil.copytree(smoke_project / "results" / "smoke", folder / "smoke")
    command = [program("entropy-dynamics"), "watch", "--scale", "smoke", "--results", folder, "--port", "0"]
    server = subprocess.Popen(command, cwd=smoke_project, stdout=subprocess.PIPE, text=True)
    yield server.stdout.readline().strip().rpartition("/")[0], Layout(folder / "smoke")
    server.terminate()
    server.wait()


def asked(address, **changes):
    try:
        with urlopen(f"{address}/answer?{urlencode(PROBLEM | changes)}") as reply:
            return json.load(reply)
    except HTTPError as error:
        return {400: json.load(error)["error"]}[error.code]


@pytest.mark.parametrize("method", ["base", "grpo", "clip_b"])
def test_answers_have_the_probabilities_of_the_policy(watched, method):
    address, layout = watched
    responses = asked(address, method=method)
    assert len(responses) == 4
    model, tokenizer = load_policy(layout.policy(MODEL, method, 0))
    turns = [{"role": "user", "content": "9,4,7,3=3"}]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    for response in responses:
        assert response["prompt"] == "9,4,7,3=3: make 3 from 9, 4, 7, 3"
        ids = torch.tensor([tokenizer.encode(prompt + "".join(response["t"]), add_special_tokens=False)])
        with torch.no_grad():
            logp = model(ids).logits[0, :-1].log_softmax(-1)
        own = logp[-len(response["t"]) :]
        chosen = own.gather(-1, ids[0, -len(response["t"]) :, None]).squeeze(-1)
        assert response["p"] == pytest.approx(chosen.tolist(), rel=1e-3, abs=1e-4)
        assert response["h"] == pytest.approx((-(own.exp() * own).sum(-1)).tolist(), rel=1e-3, abs=1e-4)
    assert asked(address, method=method) == responses  # the same problem, the same answers


def test_answers_have_the_advantages_of_their_method(watched, tmp_path):
    """W-REINFORCE's are 0.1 and -1, not relative to the group."""
    file = answer(load_config("smoke", MODEL, "w_reinforce"), watched[1], "grpo", 0, "9,4,7,3=3", tmp_path)
    responses = pd.read_parquet(file)
    assert len(responses) == 4
    for _, response in responses.iterrows():
        assert set(response["advantage"].round(6)) == {np.float32(0.1 if response["correct"] else -1)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": "make me a sandwich"}, "'make me a sandwich': the problem is not of the form 3,5,7=21"),
        ({"problem": ""}, "no problem is given"),
        ({"method": "clip_bb"}, "clip_bb"),
        ({"method": "../grpo"}, "../grpo"),
        ({"model": "gpt"}, "gpt"),
        ({"seed": "../0"}, "seed '../0' is not a number"),
        ({"seed": 99}, "seed99"),
        ({"problem": ",".join("9" * 60) + "=1"}, "sampling.max_prompt_tokens"),
    ],
)
def test_a_mistake_is_one_line(watched, changes, message):
    error = asked(watched[0], **changes)
    assert isinstance(error, str)
    assert message in error
    assert "\n" not in error
