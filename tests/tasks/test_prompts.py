"""Prompts: what a chat model and a base model are given, without doubled special tokens."""

from functools import partial

import pandas as pd
import pytest

from command_line import output, set_to
from conftest import MODEL, SETS
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.results.files import write_json, write_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages.common import make_prompts
from entropy_dynamics.stages.pass_rates import measure_pass_rates
from entropy_dynamics.tasks import Problem, find_task
from entropy_dynamics.tasks.files import write_problems
from entropy_dynamics.tasks.prompts import preview_prompt, prompt_tokens, render_prompt

PROBLEM = Problem("p", "What is 1+1?", "2", "math")
SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."  # spec: Appendix B of the paper
TEMPLATE = (
    "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def llama_tokenizer():
    """One token a character, and a post-processor that puts <s> before every text, as Llama's does."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0} | {chr(code): code for code in range(10, 128)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="~"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="~")
    made.chat_template = TEMPLATE
    return made


def test_chat_is_the_template_with_the_system_line_first(llama_tokenizer):
    expected = f"<s><|system|>{SYSTEM}<|user|>What is 1+1?<|assistant|>"
    assert render_prompt(llama_tokenizer, PROBLEM, "chat") == expected


@pytest.mark.parametrize("problem", [PROBLEM, Problem("p", "3,8=24", "24", "countdown")])
def test_base_is_trinitys_format_with_the_instruction_of_the_task(llama_tokenizer, problem):
    instruction = find_task(problem.task).instruction
    expected = f"System:{instruction}\nUser:\n{problem.text}\nAssistant:\n"
    assert render_prompt(llama_tokenizer, problem, "completion") == expected
    assert preview_prompt(problem, "completion") == expected
    assert r"\boxed{}" in instruction


@pytest.mark.parametrize("prompt_format", ["chat", "completion"])
def test_the_first_token_is_not_doubled(llama_tokenizer, prompt_format):
    text = render_prompt(llama_tokenizer, PROBLEM, prompt_format).removeprefix("<s>")
    expected = [0] + [ord(character) for character in text]
    assert prompt_tokens(llama_tokenizer, PROBLEM, prompt_format) == expected


# ---------------------------------------------------------------- prompts over the limit
TEXTS = {"long": "1+1+1+1+1+1", "short": "1+2", "longer": "1+1+1+1+1+1+1", "fits": "1+3+1"}
SUMS = [Problem(name, text, str(sum(map(int, text.split("+")))), "math") for name, text in TEXTS.items()]


@pytest.fixture
def layout(tmp_path, shared_model, tokenizer):
    """With SUMS and an untrained model."""
    layout = Layout.of("laptop", tmp_path)
    write_problems(layout.problems("train"), SUMS)
    save_policy(shared_model, tokenizer, layout.model(MODEL, 0))
    return layout


def limited(limit):
    return f"sampling.max_prompt_tokens={limit}", "sampling.max_new_tokens=4"


def config_with(limit, *overrides):
    return load_config("laptop", MODEL, "grpo", [*limited(limit), *overrides])


def lengths(tokenizer):
    return [len(prompt.token_ids) for prompt in make_prompts(config_with(1000), tokenizer, SUMS)]


def test_training_leaves_long_prompts_out_and_a_test_set_does_not_shrink(tokenizer):
    limit = lengths(tokenizer)[3]
    assert lengths(tokenizer) == [limit + 6, limit - 2, limit + 8, limit]
    config = config_with(limit)
    left = make_prompts(config, tokenizer, SUMS, drop_long=True)
    assert [prompt.problem_id for prompt in left] == ["short", "fits"]  # a prompt at the limit is within it
    assert left == make_prompts(config, tokenizer, [SUMS[1], SUMS[3]])
    over = f"^2 of 4 prompts are over the limit sampling.max_prompt_tokens = {limit}: "
    with pytest.raises(UserError, match=rf"{over}.* longer, has {limit + 8} tokens$"):
        make_prompts(config, tokenizer, SUMS)
    with pytest.raises(UserError, match=f"^4 of 4 prompts are over .* = {limit - 3}: the longest, "):
        make_prompts(config_with(limit - 3), tokenizer, SUMS, drop_long=True)


def test_a_problem_whose_prompt_is_too_long_has_no_rate(layout, tokenizer):
    config = config_with(lengths(tokenizer)[3], "pass_rates.low=null", "pass_rates.high=null")
    measure_pass_rates(config, layout)
    frame = pd.read_parquet(layout.pass_rates(0))
    assert frame["problem_id"].tolist() == [one.id for one in SUMS]
    assert config.pass_rates.keeps(frame["rate"]).tolist() == [False, True, False, True]
    assert frame["samples"].tolist() == [0, 16, 0, 16]
    assert frame["rate"].isna().tolist() == [True, False] * 2
    assert frame["correct"].dtype == frame["samples"].dtype == int


def test_a_training_run_counts_them(layout, tokenizer, tmp_path, capfd):
    limit = lengths(tokenizer)[3]
    write_json(layout.model(MODEL, 0) / "model.json", {})
    for name in SETS:
        write_problems(layout.problems(name), [Problem("v", "2+2", "4", "math")])
    write_parquet(layout.pass_rates(0), pd.DataFrame({"problem_id": [one.id for one in SUMS], "rate": 0.5}))
    step = ("training.steps=1", "training.prompts_per_step=2", "training.group_size=2")
    settings = set_to([*limited(limit), *step, "training.validation_problems=1"])
    run = ["train", "--model", MODEL, "--method", "grpo", "--seed", "0", "--results", tmp_path]
    _, err = output(capfd, *run, *settings)
    assert f"note: 2 of 4 training problems are left out: their prompts are over {limit} tokens\n" in err


# ---------------------------------------------------------------- the command
@pytest.fixture
def command(layout, tmp_path, capfd):
    """`command(...)`: `entropy-dynamics prompt` of MODEL -> stdout, stderr."""
    for name in SETS:
        problems = [Problem(f"{name}-{n}", f"4+{4 + n}", str(8 + n), "math") for n in range(2)]
        write_problems(layout.problems(name), problems)

    return partial(output, capfd, "prompt", "--model", MODEL, "--results", tmp_path)


def test_the_command_prints_what_the_model_gets(command):
    assert command() == ("<user>1+1+1+1+1+1<assistant>\n", "long of train: 13 tokens (limit 40)\n")
    out, err = command("--problem", "aime25-1")
    assert (out, err) == ("<user>4+5<assistant>\n", "aime25-1 of aime25: 5 tokens (limit 40)\n")


def test_the_command_for_a_base_model(command):
    out, err = command("--set", "model.prompt_format=completion", "--problem", "short")
    assert out == f"System:{SYSTEM}\nUser:\n1+2\nAssistant:\n"
    assert int(err.split()[3]) == len(out) - len(r"\boxed{") + 1  # one token a character, and one for that


def test_the_command_without_a_tokenizer_shows_the_messages(command, layout, tmp_path):
    (layout.model(MODEL, 0) / "tokenizer_config.json").unlink()
    out, err = command("--problem", "short")
    assert out == f"[system]\n{SYSTEM}\n[user]\n1+2\n"
    made = f"model --model {MODEL} --seed 0 --scale laptop --results {tmp_path}"
    assert err.startswith("short of train: a preview, since there is no tokenizer in ")
    assert err.endswith(f"; make it with: entropy-dynamics {made}\n")


def test_the_command_names_the_nearest_problem(command):
    out, err = command("--problem", "aime25-3", code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert "no problem 'aime25-3'" in err
    assert "the ids are like 'aime25-" in err
    assert "no problem 'foo' in " in (err := command("--problem", "foo", code=2)[1])
    assert err.endswith("; the ids are like 'long'\n")
