"""Chat templates of published tokenizers: refusals, omissions, dates, variables; and the hash of what they render."""

import pytest

from command_line import error, run, set_to
from conftest import MODEL
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import prompts_hash
from entropy_dynamics.stages.common import make_prompts
from entropy_dynamics.tasks import Problem, find_task
from entropy_dynamics.tasks.files import write_problems
from entropy_dynamics.tasks.prompts import render_prompt, turn_end_note
from mistakes import mistake
from published_models import SHAPE, byte_level_tokenizer, write_model

PROBLEM = Problem("p", "  What is 1+1?\n", "2", "math")
INSTRUCTION = find_task("math").instruction
TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
THINKING = TURNS + "{% if enable_thinking is defined and enable_thinking is false %}<no thinking>{% endif %}"
DATED = "{{ strftime_now('%Y-%m-%d') }}{% set day = strftime_now('%d %b %Y') %}({{ day }})" + TURNS


def with_template(template):
    tokenizer = build_tokenizer("bytes")
    tokenizer.chat_template = template
    return tokenizer


REFUSED = {
    "no system": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No\nsystem turn') }}{% endif %}" + TURNS,
        r"fails on a system and a user message \(No system turn\); correct it, or set prompt_format: completion",
    ),
    "alternation": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Turns must alternate') }}{% endif %}{% endfor %}",
        r"fails on .* \(Turns must alternate\)",
    ),
    "syntax": ("{% for m in messages %}{{ m.content }}", "fails on .*endfor"),
    "no instruction": (
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
        "leaves out or changes the system message 'Please reason",
    ),
    "no problem": ("{{ messages[0].content }}", r"leaves out or changes the user message ' What is 1\+1"),
    "several": ({"tool_use": TURNS, "rag": TURNS}, "multiple chat templates with no default"),
    "none": (None, r"chat_template is not set .*\); correct it, or set prompt_format: completion"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_cannot_render_a_problem_is_one_line(name):
    template, message = REFUSED[name]
    with mistake(match=message):
        render_prompt(with_template(template), PROBLEM, "chat")
    assert INSTRUCTION in render_prompt(with_template(template), PROBLEM, "completion")


def test_of_several_templates_the_default_is_used():
    named = with_template({"default": TURNS, "rag": "{{ documents[0] }}"})
    assert render_prompt(named, PROBLEM, "chat") == render_prompt(with_template(TURNS), PROBLEM, "chat")


def test_only_the_template_of_single_task_models_may_leave_the_instruction_out():
    tokenizer = build_tokenizer()
    assert render_prompt(tokenizer, PROBLEM, "chat") == f"<user>{PROBLEM.text}<assistant>"
    tokenizer.chat_template += " "
    with pytest.raises(UserError, match="leaves out or changes the system message"):
        render_prompt(tokenizer, PROBLEM, "chat")


def test_a_date_in_a_prompt_is_always_the_same():
    text = render_prompt(with_template(DATED), PROBLEM, "chat")
    assert text == f"2024-07-26(26 Jul 2024)[system]{INSTRUCTION}[user]What is 1+1?"


# ---------------------------------------------------------------- variables
def config_with(*overrides):
    return load_config("rehearsal", MODEL, overrides=overrides)


def test_a_variable_reaches_the_template():
    tokenizer = with_template(THINKING)
    plain, chosen = config_with(), config_with("model.chat_template_kwargs.enable_thinking=false")
    assert chosen.model.chat_template_kwargs == {"enable_thinking": False}
    prompts = [make_prompts(config, tokenizer, [PROBLEM]) for config in (plain, chosen)]
    texts = [tokenizer.decode(list(prompt.token_ids)) for (prompt,) in prompts]
    assert texts == [f"[system]{INSTRUCTION}[user]What is 1+1?{end}" for end in ("", "<no thinking>")]
    assert prompts_hash(prompts[0]) != prompts_hash(prompts[1])


@pytest.mark.parametrize("key", ["enable_think", "tokenize", "strftime_now"])
def test_a_variable_that_the_template_does_not_have(key):
    with mistake(f"(it has no variable {key!r}, a key of model.chat_template_kwargs); correct it"):
        render_prompt(with_template(THINKING), PROBLEM, "chat", {key: False})


# ---------------------------------------------------------------- hash and command
def test_a_prompts_hash_is_that_of_ids_and_tokens():
    problems = [PROBLEM, Problem("q", "What is 2+2?", "4", "math")]
    hashes = {
        prompts_hash(make_prompts(config_with(), with_template(template), chosen))
        for template, chosen in ((TURNS, problems), (TURNS, problems[:1]), (DATED, problems), (TURNS + "!", problems))
    }
    assert len(hashes) == 4
    renamed = [Problem("r", *list(vars(one).values())[1:]) for one in problems[:1]]
    assert prompts_hash(make_prompts(config_with(), with_template(TURNS), renamed)) not in hashes


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TURNS, None),
        (TURNS + "</s>", "</s>"),
        (TURNS + "{% if not add_generation_prompt %} {{ eos_token }}\n{% endif %}", None),
        (TURNS + "<|im_end|>\n<|endoftext|>", "<|im_end|>"),
        (TURNS + "[END]\n", "[END]"),
        (REFUSED["syntax"][0], None),
    ],
)
def test_a_template_that_ends_turns_otherwise_than_the_tokenizer_is_noted(template, end):
    note = turn_end_note(with_template(template), "chat")
    assert (note or "").startswith(f"the chat template ends a turn with {end}, but" if end else "")
    assert (note is None) == (end is None)
    assert turn_end_note(with_template(template), "completion") is None


@pytest.mark.parametrize("end", ["<|stop|>", "</s>"])
def test_the_commands_say_which_token_ends_a_turn(end, tmp_path, capfd):
    source, tokenizer = write_model(tmp_path / "source"), byte_level_tokenizer()
    tokenizer.chat_template = TURNS + "{% if not add_generation_prompt %}" + end + "{% endif %}"
    tokenizer.save_pretrained(source)
    layout = Layout.of("paper", tmp_path)
    for name in load_config("paper", MODEL).data.sets:
        write_problems(layout.problems(name), [PROBLEM])
    shape = set_to([f"model.shape.{key}={value}" for key, value in SHAPE.items()])
    options = ["--scale", "paper", "--model", MODEL, "--results", tmp_path, "--set", f"model.path={source}", *shape]
    for command in ("model", "prompt"):
        assert main([command, *map(str, options)]) == 0
        other = "but the tokenizer's end token is </s>"
        note = f"note: the chat template ends a turn with {end}, {other}"
        assert (note in capfd.readouterr().err) == (end != "</s>")


def test_the_command_shows_the_variables_and_refuses_a_template(shared_model, tmp_path, capfd):
    layout = Layout.of("laptop", tmp_path)
    write_problems(layout.problems("train"), [PROBLEM])
    command = ["prompt", "--model", MODEL, "--results", tmp_path]
    save_policy(shared_model, with_template(THINKING), layout.model(MODEL, 0))
    shown = run(capfd, *command, "--set", "model.chat_template_kwargs.enable_thinking=false")
    assert shown == f"[system]{INSTRUCTION}[user]What is 1+1?<no thinking>\n"
    save_policy(shared_model, with_template(REFUSED["no system"][0]), layout.model(MODEL, 0))
    assert error(capfd, *command).startswith(f"{layout.model(MODEL, 0)}: the chat template fails on ")
