"""The cold start of a pretrained model: supervised fine-tuning before RL, its own for every seed."""

import json
import threading
from pathlib import Path

import pytest
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.models import warm_start as module
from entropy_dynamics.models.storage import load_model, save_policy
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages import model as stage
from entropy_dynamics.stages.model import prepare_model
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import write_problems
from mistakes import mistake

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def prepared(tmp_path, make_model, tokenizer):
    """A layout with problems, and a function that gives the config of a tiny pretrained model with a cold start."""
    layout = Layout(tmp_path / "results")
    source = tmp_path / "source"
    save_policy(make_model("llama"), tokenizer, source)

    def config(*overrides: str):
        fixed = [f"model.path={source}", "model.shape=null", "cold_start.steps=3", "cold_start.batch_size=4"]
        return load_config("smollm2", MODEL, None, [*fixed, *overrides])

    for name in config().data.sets:
        write_problems(layout.problems(name), [Problem(f"{name}-0", "1,2=3", "3", "countdown")])
    return layout, config


def weights(folder) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in load_model(folder).parameters()])


def test_every_seed_has_its_own_start_from_one_pretrained_model(prepared, monkeypatch):
    layout, config = prepared
    made = []
    monkeypatch.setattr(stage, "prepare_pretrained", lambda *given: made.append(1) or prepare(*given))
    first, second = (prepare_model(config(), layout, seed) for seed in (0, 1))
    assert len(made) == 1
    [base] = [folder for folder in first.parent.iterdir() if folder.name[0] == "." and folder.is_dir()]
    assert not torch.equal(weights(first), weights(second))
    facts = json.loads((second / "model.json").read_text())
    assert facts["pretrained_sha256"] == json.loads((base / "model.json").read_text())["weights_sha256"]
    assert facts["pretrained_sha256"] != facts["weights_sha256"]
    assert (facts["seed"], facts["warm_start_steps"], facts["toy"]) == (1, 3, False)
    assert facts["warm_start_loss"] > 0
    again = weights(first)
    for file in first.iterdir():
        file.unlink()
    assert torch.equal(weights(prepare_model(config(), layout, 0)), again)


prepare = stage.prepare_pretrained


def test_jobs_that_start_together_prepare_it_once(prepared, monkeypatch):
    layout, config = prepared
    made, waiting, found = [], threading.Barrier(2), []
    monkeypatch.setattr(stage, "prepare_pretrained", lambda *given: made.append(1) or prepare(*given))

    def job(config):
        waiting.wait()
        found.append(stage._pretrained(config, layout, []))

    jobs = [threading.Thread(target=job, args=(config(),)) for _ in range(2)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert len(made) == 1
    assert found[0] == found[1]
    assert (found[0] / "model.json").is_file()


@pytest.mark.parametrize("replaced", [False, True])
def test_another_model_is_read_from_its_own_folder_or_from_the_same(
    prepared, tmp_path, make_model, tokenizer, replaced
):
    layout, config = prepared
    first = weights(prepare_model(config("cold_start.learning_rate=1.0e-12"), layout, 0))
    other = make_model("llama")
    for parameter in other.parameters():
        parameter.data += 1
    folder = Path(config().model.path) if replaced else tmp_path / "other"
    save_policy(other, tokenizer, folder)
    there = prepare_model(config("cold_start.learning_rate=1.0e-12", f"model.path={folder}"), layout, 1)
    assert (weights(there) - first).abs().min() > 0.9


def test_no_problem_of_any_set_is_demonstrated(prepared, monkeypatch):
    layout, config = prepared
    held = {name: f"{place},1=9" for place, name in enumerate(config().data.sets, 5)}
    for name, text in held.items():
        write_problems(layout.problems(name), [Problem(f"{name}-0", text, "9", "countdown")])
    excluded, batches = [], stage.solution_batches
    monkeypatch.setattr(
        stage,
        "solution_batches",
        lambda *given, exclude, **more: excluded.append(exclude) or batches(*given, exclude=exclude, **more),
    )
    prepare_model(config(), layout, 0)
    assert excluded == [set(held.values())]


def test_without_a_cold_start_a_pretrained_model_exists_once(prepared):
    layout, config = prepared
    plain = config("cold_start=null")
    assert (config().untrained(MODEL, 7), plain.untrained(MODEL, 7)) == (7, 0)
    prepare_model(plain, layout, 0)
    with mistake("--seed 1: smollm2-135m-instruct is pretrained, so it exists once, with seed 0"):
        prepare_model(plain, layout, 1)


def test_demonstrations_that_share_a_prefix_give_the_same_step(make_model, monkeypatch):
    start = load_config("smollm2", MODEL).cold_start.model_copy(update={"steps": 1})
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 6, 0], [1, 2, 7, 8, 9]])
    labels = torch.tensor([[-100, -100, -100, 4, 5], [-100, -100, -100, 6, -100], [-100, -100, 7, 8, 9]])
    losses, steps = [], []
    for shared in (True, False):
        monkeypatch.setattr("entropy_dynamics.models.tree.fits", lambda model, shared=shared: shared)
        torch.manual_seed(0)
        model = make_model("llama").double()
        losses += module.warm_start(model, start, iter([(tokens, labels, 6.0)]), lambda loss: None, pretrained=True)
        steps.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    torch.testing.assert_close(*steps, rtol=0, atol=1e-7)  # norms are computed in fp32
