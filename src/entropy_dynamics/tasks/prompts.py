"""Prompts: from a problem to the tokens of a model's input."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.errors import UserError, closest
from entropy_dynamics.tasks import Problem, find_task
from entropy_dynamics.tasks.files import load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TODAY = datetime(2024, 7, 26)  # for templates that state the date: Llama 3's own where it does not know today's
TOY_TEMPLATE = (  # of toy models of a single task, which need no instruction
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<end>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def render_prompt(
    tokenizer: "PreTrainedTokenizerBase", problem: Problem, prompt_format: str, variables: Mapping[str, Any] = {}
) -> str:
    """The prompt text that a model continues.

    "chat" is the tokenizer's chat template, with the task's instruction as the system message and the problem as the
    user message; "completion" is the plain format that Trinity-RFT uses for base models. `variables` are those of the
    chat template, such as `enable_thinking`; its date is always `TODAY`.

    Raises UserError for "chat" with a tokenizer that has no chat template, or with one that cannot render these
    messages and `variables`, or leaves out the instruction or the problem.
    """
    if prompt_format == "completion":
        return preview_prompt(problem, prompt_format)
    name, messages = tokenizer.name_or_path or "the tokenizer", _messages(problem)
    settings = {"tokenize": False, "add_generation_prompt": True, "strftime_now": TODAY.strftime}
    try:
        template = tokenizer.get_chat_template()
        if unknown := [key for key in variables if not re.search(rf"\b{re.escape(key)}\b", template)]:
            raise ValueError(f"it has no variable {unknown[0]!r}, a key of model.chat_template_kwargs")
        text = tokenizer.apply_chat_template(messages, chat_template=template, **settings, **variables)
        for message in messages[1:] if template == TOY_TEMPLATE else messages:
            if message["content"].strip() not in text:
                start = message["content"][:40]
                raise ValueError(f"it leaves out or changes the {message['role']} message {start!r}...")
    except Exception as error:  # templates are programs
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{name}: the chat template fails on a system and a user message ({reason}); correct it, or set "
            "prompt_format: completion"
        ) from error
    return text


def prompt_tokens(
    tokenizer: "PreTrainedTokenizerBase", problem: Problem, prompt_format: str, variables: Mapping[str, Any] = {}
) -> list[int]:
    """The prompt's token ids; see `render_prompt`."""
    text = render_prompt(tokenizer, problem, prompt_format, variables)
    # A chat template includes special tokens; adding them again would duplicate the first.
    return tokenizer.encode(text, add_special_tokens=prompt_format == "completion")


def turn_end_note(tokenizer: "PreTrainedTokenizerBase", prompt_format: str) -> str | None:
    """A warning if the chat template ends a turn otherwise than with the end token, as responses then may not end."""
    turns = [{"role": role, "content": role.upper()} for role in ("system", "user", "assistant")]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, strftime_now=TODAY.strftime)
    except Exception:  # no template, or one that `render_prompt` refuses with its reason
        return None
    written, end = text.rpartition("ASSISTANT")[2].strip(), str(tokenizer.eos_token)
    if prompt_format != "chat" or not written or written.startswith(end):
        return None
    other = re.match(r"<[^<>]*>|\S+", written)[0]
    return (
        f"the chat template ends a turn with {other}, but the tokenizer's end token is {end}, so that responses may "
        f"run to the token limit: set eos_token in tokenizer_config.json to {other} if the model ends its turns so"
    )


def preview_prompt(problem: Problem, prompt_format: str) -> str:
    """The prompt as far as it is known without a tokenizer: the chat messages, or the complete completion text."""
    system, user = _messages(problem)
    if prompt_format == "completion":
        return f"System:{system['content']}\nUser:\n{user['content']}\nAssistant:\n"
    return f"[system]\n{system['content']}\n[user]\n{user['content']}"


def _messages(problem: Problem) -> list[dict[str, str]]:
    system = find_task(problem.task).system_message(problem.text)
    return [{"role": "system", "content": system}, {"role": "user", "content": problem.text}]


def find_problem(directory: Path, sets: Iterable[str], problem_id: str | None) -> tuple[str, Problem]:
    """The problem with that id (None: the very first problem) and the name of the first of `sets` that has it.

    Raises UserError if no problem has this id.
    """
    ids = []
    for name in sets:
        for problem in load_problems(directory / f"{name}.parquet"):
            if problem_id in (None, problem.id):
                return name, problem
            ids.append(problem.id)
    near = closest(str(problem_id), ids) or ids[0]
    raise UserError(f"no problem {problem_id!r} in {directory}; the ids are like {near!r}")
