r"""Prompts: from a problem to the tokens that a model is given."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import write_text
from entropy_dynamics.tasks.problems import Problem, load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."


def render_prompt(tokenizer: "PreTrainedTokenizerBase", problem: str, prompt_format: str) -> str:
    """The text that a model continues.

    "chat" is the tokenizer's own template with the system line and the problem as the user's turn; "base" is
    the plain format that Trinity-RFT gives base models. Raises UserError for another format, or for a chat
    without a template.
    """
    _check_format(prompt_format)
    if prompt_format == "base":
        return _base_prompt(problem)
    if not tokenizer.chat_template:
        raise UserError(f"{tokenizer.name_or_path or 'the tokenizer'}: no chat template; set prompt_format: base")
    return tokenizer.apply_chat_template(_messages(problem), tokenize=False, add_generation_prompt=True)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", problem: str, prompt_format: str, max_tokens: int) -> list[int]:
    """The prompt's token ids. Raises UserError if there are more than `max_tokens`: cutting would change the task."""
    tokens = prompt_tokens(tokenizer, problem, prompt_format)
    if len(tokens) > max_tokens:
        start = problem if len(problem) <= 60 else problem[:60] + "..."
        raise UserError(
            f"the prompt of problem {start!r} has {len(tokens)} tokens, over the limit "
            f"sampling.max_prompt_tokens = {max_tokens}"
        )
    return tokens


def prompt_tokens(tokenizer: "PreTrainedTokenizerBase", problem: str, prompt_format: str) -> list[int]:
    """The prompt's token ids, however many."""
    text = render_prompt(tokenizer, problem, prompt_format)
    # A chat template writes its own special tokens; adding them again would double the first.
    return tokenizer.encode(text, add_special_tokens=prompt_format == "base")


def preview_messages(problem: str, prompt_format: str) -> str:
    """What a real model would be sent, readable without its tokenizer: the messages, or the base format's text."""
    _check_format(prompt_format)
    if prompt_format == "base":
        return _base_prompt(problem)
    return "\n".join(f"[{message['role']}]\n{message['content']}" for message in _messages(problem))


def _check_format(prompt_format: str) -> None:
    if prompt_format not in {"chat", "base"}:
        raise UserError(f"prompt_format {prompt_format!r} is unknown; it is 'chat' or 'base'")


def _messages(problem: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]


def _base_prompt(problem: str) -> str:
    return f"System:{SYSTEM}\nUser:\n{problem}\nAssistant:\n"


def find_problem(directory: Path, sets: Sequence[str], problem_id: str | None) -> tuple[str, Problem]:
    """The problem of that id in the first of `sets` that has it, or the first of all, and the name of its set.

    Raises UserError for an id that none has; it names the nearest.
    """
    ids = []
    for name in sets:
        for problem in load_problems(directory / f"{name}.parquet"):
            if problem_id in (None, problem.id):
                return name, problem
            ids.append(problem.id)
    close = difflib.get_close_matches(problem_id, ids, n=1, cutoff=0)
    raise UserError(f"no problem {problem_id!r} in {directory}; did you mean {close[0]!r}?")


def write_prompts(directory: Path, sets: Sequence[str], prompt_format: str) -> list[Path]:
    """For each problem set in `directory` write `<set>.prompts.jsonl`: id and what a real model would be sent."""
    written = []
    for name in sets:
        problems = load_problems(directory / f"{name}.parquet")
        rows = [{"id": problem.id, "prompt": preview_messages(problem.problem, prompt_format)} for problem in problems]
        written.append(directory / f"{name}.prompts.jsonl")
        write_text(written[-1], "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return written
