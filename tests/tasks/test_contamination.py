"""The same problem in another typography, with an instruction or a sentence more, does not stay in the training set."""

import json
from itertools import product

import pandas as pd
import pytest

from command_line import from_files, write_lines
from command_line import run as said
from conftest import REAL_PROBLEMS
from entropy_dynamics.cli import main
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.tasks.statements import Statements, asks_for_format, normal_form, without_instructions
from instructions import AFTER, BEFORE

STATED = (
    r"Let $u_1, u_2, \ldots$ be real numbers with $u_{12} = \frac{3}{4}\cdot 5000$ and $u_{n+1} \le u_n$ for all $n$. "
    r"Determine the largest value of $u_2$ if $\angle PQR = 45^\circ$."
)
SAME = [
    STATED.replace("Let", "LET").replace("real numbers", "Real\n numbers"),
    STATED.replace(" = ", "="),
    STATED.replace("u_1", "u_{1}").replace("u_2", "u_{2}"),
    STATED.replace("u_{12}", "u₁₂"),
    STATED.replace(r"\frac{3}{4}", r"\tfrac34"),
    STATED.replace(r"\ldots", r"\cdots").replace(r"\le ", r"\leqslant "),
    STATED.replace(r"45^\circ", "45°"),
    STATED.replace(r"45^\circ", r"45^{\circ}").rstrip("."),
    STATED.replace("$u_{12}", r"\[u_{12}").replace("5000$", r"5{,}000\]").replace("$", ""),
    STATED.replace(" for all ", "\\quad\u2009for all~"),
]


@pytest.fixture
def run(tmp_path, capsys):
    """Run `problems` with these training texts, against STATED; returns the printed lines and the report on train."""

    def write(name, texts):
        rows = [{"id": f"{name}{place}", "problem": text, "answer": 7} for place, text in enumerate(texts)]
        return str(write_lines(tmp_path / f"{name}.jsonl", rows))

    def problems(texts, *options):
        files = from_files(write("train", texts), test=write("test", [STATED]))
        printed = said(capsys, "problems", *files, "--results", tmp_path, *options).splitlines()
        return printed, json.loads((tmp_path / "smoke/data/problems.json").read_text())["sets"]["train"]

    return problems


@pytest.mark.parametrize("text", SAME)
def test_another_typography_is_the_same_problem(text):
    assert normal_form(text) == normal_form(STATED)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $2^{10}$?", "What is $2^{1}0$?"),
        (r"Find $\frac{1}{23}$.", r"Find $\frac{12}{3}$."),
        ("Find $(a+b)c$.", "Find $a+(bc)$."),
        ("Find $x_1$.", "Find $x^1$."),
        ("What is 2¹⁰?", "What is 210?"),
        ("What is x₁₂?", "What is x12?"),
        ("What is 3½?", "What is 31⁄2?"),
    ],
)
def test_other_mathematics_is_another_problem(one, other):
    assert normal_form(one) != normal_form(other)


def test_the_command_drops_near_duplicates_and_reports_them(run):
    texts = [
        "What is $1+1$?",
        SAME[3],
        f"{STATED} Give the answer as an integer, please.",
        STATED.replace("Determine the largest", "What is the greatest"),
        STATED.replace("45", "46"),  # one template, other numbers
        STATED.replace("5000", "4000"),
        STATED.replace("PQR", "KLM"),
    ]
    printed, report = run(texts)
    assert printed[0] == "train: 4 problems; dropped: 1 also in test, 2 near duplicate in test"
    assert [(found["id"], found["of"]) for found in report["near_duplicates"]] == [
        ("train2", "test0"),
        ("train3", "test0"),
    ]
    assert report["rows"] == report["kept"] + sum(report["dropped"].values())


def test_the_threshold_is_a_setting(run):
    reworded = STATED.replace("Determine the largest", "What is the greatest")
    printed, report = run([reworded], "--set", "data.near_duplicates=0.95")
    assert printed[0] == "train: 1 problems"
    assert 0.5 < report["near_duplicates"][0]["overlap"] < 0.95


def test_of_equally_near_texts_the_first_is_named_whatever_the_order_of_hashes():
    words = ["".join(letters) for letters in product("bcdf", "aeio", "lmn")]
    windows = Statements(" ".join(words[start : start + 20]) for start in range(28))
    assert windows.nearest(" ".join(words)) == (0, 1.0)


def test_numbers_count_in_words_and_in_their_order():
    near = Statements(["Ann has three red and 5 blue marbles and draws 2 of them at random without looking."])
    assert near.nearest("Ann has 3 red and five blue marbles and draws two of them at random without looking.")[1] == 1
    assert near.nearest("Ann has 5 red and 3 blue marbles and draws 2 of them at random without looking.") == (0, 0.0)


@pytest.mark.parametrize(
    "form",
    [
        f"{BEFORE}\n\n{{}}\n\n{AFTER}",
        f"{BEFORE} {{}} {AFTER.replace(chr(34), chr(0x201D))}",
        f"<|im_start|>user\n{BEFORE}\n{{}}\n\n{AFTER}<|im_end|>\n<|im_start|>assistant\n",
        f"user\n{{}}\n{AFTER}\nassistant\n",
        "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
        "{} Let's think step by step and output the final answer within \\boxed{{}}.",
        "Question: {}\nAnswer:",
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
        "### Instruction:\n{}\n\n### Response:",
    ],
)
def test_instructions_on_the_format_are_removed(form):
    assert without_instructions(form.format("How many?")) == "How many?"


def test_no_part_of_a_sentence_is_removed_as_an_instruction():
    text = r"How many? Make sure to put your final answer within \boxed{}."
    assert without_instructions(text) == text
    assert asks_for_format(text)


def test_unknown_instructions_are_counted(run):
    printed, report = run(["Add 1 and 1. End with a line Answer: N.", "Add 2 and 2."])
    assert printed[0] == "train: 2 problems; 1 still ask for an answer format"
    assert report["instructions_left"] == 1
    assert not asks_for_format("How many answers are there?")


def test_the_columns_of_verl_are_read_without_options(tmp_path):
    chats = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{BEFORE}\n{n}+{n}?"}] for n in (1, 2)
    ]
    table = {"data_source": ["d"] * 2, "prompt": chats, "reward_model": [{"ground_truth": str(2 * n)} for n in (1, 2)]}
    pd.DataFrame(table).to_parquet(tmp_path / "a.parquet")
    assert main(["problems", *from_files(tmp_path / "a.parquet"), "--results", str(tmp_path)]) == 0
    kept = load_problems(tmp_path / "smoke/data/train.parquet")
    assert {problem.text: problem.answer for problem in kept} == {"1+1?": "2", "2+2?": "4"}


@pytest.mark.skipif(not (REAL_PROBLEMS / "dapo_slice.jsonl").exists(), reason="real problems are not on this machine")
def test_the_default_threshold_drops_few_real_problems():
    """DAPO's authors removed no AMC or MATH-500 problems; of AIME 2024 and 2025 the cleaned slice has none."""
    texts = {name: [json.loads(line)["problem"] for line in (REAL_PROBLEMS / f"{name}.jsonl").open()] for name in
             ("dapo_slice", "aime24", "aime25", "amc23")}  # fmt: skip
    near = {name: Statements(texts[name]) for name in ("aime24", "aime25", "amc23")}
    dropped = {name: sum(each.nearest(text)[1] >= 0.5 for text in texts["dapo_slice"]) for name, each in near.items()}
    assert dropped == {"aime24": 0, "aime25": 0, "amc23": 5}  # all five are the same problems, reworded
