"""Prompts: from a problem to the tokens of a model's input."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.errors import UserError, closest
from entropy_dynamics.results.files import write_text
from entropy_dynamics.tasks import Problem, find_task
from entropy_dynamics.tasks.files import load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(tokenizer: "PreTrainedTokenizerBase", problem: Problem, prompt_format: str) -> str:
    """The prompt text that a model continues.

    "chat" is the tokenizer's chat template, with the task's instruction as the system message and the problem as the
    user message; "completion" is the plain format that Trinity-RFT uses for base models.

    Raises:
        UserError: "chat" with a tokenizer that has no chat template.
    """
    if prompt_format == "completion":
        return preview_prompt(problem, prompt_format)
    if not tokenizer.chat_template:
        raise UserError(f"{tokenizer.name_or_path or 'the tokenizer'}: no chat template; set prompt_format: completion")
    return tokenizer.apply_chat_template(_messages(problem), tokenize=False, add_generation_prompt=True)


def prompt_tokens(tokenizer: "PreTrainedTokenizerBase", problem: Problem, prompt_format: str) -> list[int]:
    """The prompt's token ids."""
    text = render_prompt(tokenizer, problem, prompt_format)
    # A chat template includes special tokens; adding them again would duplicate the first.
    return tokenizer.encode(text, add_special_tokens=prompt_format == "completion")


def preview_prompt(problem: Problem, prompt_format: str) -> str:
    """The prompt as far as it is known without a tokenizer: the chat messages, or the complete completion text."""
    system, user = _messages(problem)
    if prompt_format == "completion":
        return f"System:{system['content']}\nUser:\n{user['content']}\nAssistant:\n"
    return f"[system]\n{system['content']}\n[user]\n{user['content']}"


def _messages(problem: Problem) -> list[dict[str, str]]:
    instruction = find_task(problem.task).instruction
    return [{"role": "system", "content": instruction}, {"role": "user", "content": problem.text}]


def find_problem(directory: Path, sets: Iterable[str], problem_id: str | None) -> tuple[str, Problem]:
    """The problem with that id (None: the very first problem) and the name of the first of `sets` that has it.

    Raises:
        UserError: no problem has this id; the message suggests one that is near, if any is.
    """
    ids = []
    for name in sets:
        for problem in load_problems(directory / f"{name}.parquet"):
            if problem_id in (None, problem.id):
                return name, problem
            ids.append(problem.id)
    close = closest(str(problem_id), ids)
    hint = f"did you mean {close!r}?" if close else f"the ids are like {ids[0]!r}"
    raise UserError(f"no problem {problem_id!r} in {directory}; {hint}")


def write_prompts(directory: Path, sets: Iterable[str], prompt_format: str) -> None:
    """Write `<set>.prompts.jsonl`, with ids and prompt previews, for each of `sets` in `directory`."""
    for name in sets:
        problems = load_problems(directory / f"{name}.parquet")
        rows = [{"id": problem.id, "prompt": preview_prompt(problem, prompt_format)} for problem in problems]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(directory / f"{name}.prompts.jsonl", lines)
