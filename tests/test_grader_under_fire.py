r"""The grader against responses that try to break it, and against every way in which models write a real answer."""

import ast
import faulthandler
import json
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from entropy_dynamics.tasks.cross_check import COUNTS, MathVerify, cross_check
from entropy_dynamics.tasks.grading import REWARDS, grade
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import ROOT
from entropy_dynamics.tasks import grading
from grader_attacks import CANARY, CODE, FAMILIES, HUGE, MEGABYTE, PIECES, check, last_box, literal, nothing_evaluated

REASONS = st.sampled_from(["stop", "length"])
SHARED = ROOT.parent / "shared" / "data"

# ---------------------------------------------------------------- any response

TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join),
    st.lists(st.sampled_from([*PIECES, *HUGE]), max_size=4).map("".join),
    st.tuples(st.sampled_from(PIECES), st.integers(1, 5000)).map(lambda one: one[0] * one[1]),
    st.text(st.characters(codec=None), max_size=200),
    st.tuples(st.text(max_size=20), st.sampled_from([*PIECES, *HUGE])).map(lambda one: f"{one[0]}\\boxed{{{one[1]}}}"),
)
ANSWERS = st.sampled_from([33, -33, 0, 3, 3300, 10**18 - 1]) | st.integers(-(10**17), 10**17)


@pytest.fixture(autouse=True)
def no_canary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(CANARY).exists()


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, ANSWERS, REASONS)
@example("\\boxed{" + "9" * 100_000 + "}", 33, "stop")  # more digits than int() reads
@example("\\boxed{\x0033}", 33, "stop")
@example("\\boxed{33\u200f}", 33, "stop")
def test_any_response(text, answer, finish_reason):
    check(text, answer, finish_reason)


@pytest.mark.long
@settings(max_examples=300_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, ANSWERS, REASONS)
def test_any_response_for_long(text, answer, finish_reason):
    check(text, answer, finish_reason)


@settings(deadline=None)
@given(st.text(max_size=50), st.integers(-(10**18) + 1, 10**18 - 1), st.lists(st.sampled_from(PIECES), max_size=5))
def test_a_literal_in_the_last_box_is_right_whatever_comes_before(noise, answer, pieces):
    check(text := noise + "".join(pieces) + f" \\boxed{{{answer}}}", answer, "stop")
    assert grade(text, answer, "stop").correct
    assert not grade(text, answer + 1, "stop").correct


def test_the_reference_reads_by_itself():
    """The reading that the properties rest on, by hand."""
    assert last_box(r"\boxed{1} \boxed{\text{3} {}}") == r"\text{3} {}"
    assert last_box(r"\boxed{1} \boxed{2") is None
    assert literal(r"\text{ 1{,}234 }^\circ") == 1234
    assert literal("−33.000") == -33
    assert literal(r"33\text{ sq. cm}") == 33
    for no_integer in ("", "33.5", "9^9", "9**9", "٣٣", "1/2", "--3", "3-3", "x", None):
        assert literal(no_integer) is None


def test_the_watch_sees_what_an_evaluating_grader_would_do():
    for evil in (
        lambda: eval("1"),
        lambda: exec("1"),
        lambda: compile("1", "", "eval"),
        lambda: open("/dev/null").close(),
        lambda: __import__("this_is_no_module"),
    ):
        with pytest.raises(AssertionError), nothing_evaluated(), suppress(ImportError):
            evil()


def test_the_source_of_the_grader_has_no_means_to_evaluate():
    tree = ast.parse(Path(grading.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert imported == {"re", "collections", "collections.abc", "dataclasses"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "open", "__import__", "getattr", "float", "complex", "globals"}


# ---------------------------------------------------------------- a megabyte


@contextmanager
def ends_within(seconds: float, processor_seconds: float):
    """Processor time is what a busy machine does not lengthen. What does not come back at all ends the process."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)  # with a trace of where it was
    start = time.process_time()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert time.process_time() - start < processor_seconds


@pytest.mark.parametrize("unit", FAMILIES, ids=lambda unit: ascii(unit[:20]))
def test_a_megabyte_of_anything_comes_to_an_end(unit):
    """At most a second in linear time; in quadratic time minutes in C, days in Python."""
    text = unit * (MEGABYTE // len(unit))
    with ends_within(300, processor_seconds=10):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}", f"{text}\\boxed{{33}}"):
            found = grade(response, 33, "stop")
            assert set(REWARDS) == {"paper", "binary"}
            assert found.answer is None or abs(found.answer) < 10**18
        assert grade(f"{text}\\boxed{{33}}", 33, "length").correct


@pytest.mark.long
@pytest.mark.parametrize("unit", FAMILIES, ids=lambda unit: ascii(unit[:20]))
def test_ten_megabytes_of_anything_come_to_an_end(unit):
    """Seconds in linear time, hours in quadratic time."""
    text = unit * (10 * MEGABYTE // len(unit))
    with ends_within(300, processor_seconds=100):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}", f"{text}\\boxed{{33}}"):
            grade(response, 33, "stop")


# ---------------------------------------------------------------- real answers as models write them

# How an answer is written, with 33 (or 033, as on AIME's answer sheet) in its place -> whether it is right by the rules
# of grading.py and docs/decisions.md: the integer in the last closed box.
WRITTEN = {
    r"\boxed{33}": True,
    r"\boxed{033}": True,  # leading zeros
    r"\boxed{000033}": True,
    r"$\boxed{33}$": True,
    r"$$\boxed{33}$$": True,
    r"\[\boxed{33}\]": True,
    r"\(\boxed{33}\).": True,
    r"**\boxed{33}**": True,
    "**Final Answer:** $\\boxed{33}$\n\n": True,
    r"`\boxed{33}`": True,
    "```latex\n\\boxed{33}\n```": True,
    r"\boxed{ 33 }": True,
    "\\boxed{\n33\n}": True,
    r"\boxed {33}": True,
    "\\boxed\n{33}": True,
    r"\\boxed{33}": True,  # a backslash escaped once too often
    r"\boxed{$33$}": True,
    r"\boxed{\$33}": True,
    r"\boxed{+33}": True,
    r"\boxed{33.}": True,
    r"\boxed{33.0}": True,
    r"\boxed{33.000}": True,
    r"\boxed{\text{33}}": True,
    r"\boxed{\textbf{33}}": True,
    r"\boxed{\mathbf{33}}": True,
    r"\boxed{\mathrm{ 33 }}": True,
    r"\textbf{\boxed{33}}": True,
    r"\fbox{\boxed{33}}": True,
    r"\boxed{\boxed{33}}": True,
    r"\boxed{33^\circ}": True,
    r"\boxed{33^{\circ}}": True,
    r"\boxed{33°}": True,
    r"\boxed{33\%}": True,
    r"\boxed{33 \text{ minutes}}": True,
    r"\boxed{33\text{ sq. cm}}": True,
    r"\boxed{1}, no: \boxed{33}": True,  # the last one counts
    r"\boxed{33} and \boxed{33}": True,
    r"\boxed{33} } } {": True,
    "\\boxed{33}\u200f\x00": True,
    r"\boxed{33}<|im_end|>": True,
    r"So m + n = 33, which is the answer: \boxed{33}. Note that \fbox{1} is wrong.": True,
    # no box
    "The answer is 33": False,
    "The answer is 33.": False,
    "Answer: 33": False,
    "**33**": False,
    "33": False,
    r"$\mathbf{33}$": False,
    r"\fbox{33}": False,
    r"\framebox{33}": False,
    r"\boxed 33": False,
    r"\boxed(33)": False,
    "boxed{33}": False,
    r"\Boxed{33}": False,
    r"\boxed\{33\}": False,
    # not closed, or another one comes last
    r"\boxed{33": False,
    r"\boxed{33\}": False,
    r"\boxed{{33}": False,
    r"\boxed{33} \boxed{": False,
    r"\boxed{33} or \boxed{331}": False,
    r"\boxed{33} \boxed{}": False,
    r"\boxed{33\boxed{}}": False,
    # something else than an integer: an answer, and a wrong one
    r"\boxed{-33}": False,
    r"\boxed{33.5}": False,
    r"\boxed{33/1}": False,
    r"\boxed{\frac{33}{1}}": False,
    r"\boxed{33^1}": False,
    r"\boxed{33+0}": False,
    r"\boxed{n=33}": False,
    r"\boxed{33_{10}}": False,
    r"\boxed{33e0}": False,
    r"\boxed{33,}": False,
    r"\boxed{33, 33}": False,
    r"\boxed{[33]}": False,
    r"\boxed{(33)}": False,
    r"\boxed{{33}}": False,
    r"\boxed{33\text{ or }1}": False,
    r"\boxed{33\text{ million}}": False,
    r"\boxed{\text{The answer is }33}": False,
    "\\boxed{33\x00}": False,
    "\\boxed{\u200f33}": False,
    r"\boxed{int('33')}": False,
    r"\boxed{%d} % 33": False,
}
WITHOUT_A_BOX = [form for form in WRITTEN if "\\boxed" not in form]


def written(form: str, answer: int) -> str:
    return form.replace("033", f"{answer:03d}") if "033" in form else form.replace("33", str(answer))


def aime_answers() -> list[int]:
    files = [SHARED / name for name in ("aime24.jsonl", "aime25.jsonl")]
    if not all(file.is_file() for file in files):
        pytest.skip("the real data files are not here")
    answers = [int(json.loads(line)["answer"]) for file in files for line in file.read_text().splitlines() if line]
    assert len(answers) == 60
    assert all(0 <= answer <= 999 for answer in answers)
    return answers


@pytest.mark.parametrize(("form", "right"), WRITTEN.items(), ids=map(ascii, WRITTEN))
def test_real_answers_as_models_write_them(form, right):
    for answer in aime_answers():
        text = "Let me think.\n" + written(form, answer)
        check(text, answer, "stop")
        found = grade(text, answer, "stop")
        assert found.correct is right
        assert found.formatted >= right
        assert not grade(text, 1000, "stop").correct
        cut_off = grade(text, answer, "length")
        assert (cut_off.correct, cut_off.formatted) == (right, False)


@pytest.mark.parametrize("form", WITHOUT_A_BOX)
def test_real_answers_without_a_box_earn_the_paper_s_reward_for_the_answer_alone(form):
    for answer in aime_answers():
        found = grade(written(form, answer), answer, "stop")
        assert (found.correct, found.answer_correct) == (False, True)
        assert (REWARDS["paper"](found), REWARDS["binary"](found)) == (0.0, 0.0)


@pytest.mark.parametrize("code", CODE)
def test_code_in_a_box_is_a_wrong_answer(code):
    found = grade(f"\\boxed{{{code}}}", 33, "stop")
    assert (found.answer, found.correct, REWARDS["paper"](found)) == (None, False, -0.1)


# ---------------------------------------------------------------- the second opinion

SOUND = r"\boxed{5}"
FAULTS = {
    "raise ValueError('no')": "crash",
    "raise RecursionError": "crash",
    "raise MemoryError": "crash",
    "raise KeyboardInterrupt": "crash",
    "raise SystemExit(0)": "crash",
    "import os; os._exit(0)": "crash",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "crash",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "crash",
    "import time; time.sleep(3600)": "timeout",
    "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)": "timeout",
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); all(iter(lambda: 1, 0))": "timeout",
    "print('{\"correct\": true}')": "agree",  # what a library prints is no reply
}


@pytest.mark.parametrize(("fault", "verdict"), FAULTS.items(), ids=lambda value: value[-40:])
def test_a_fault_of_the_cross_check_is_counted_apart(tmp_path, monkeypatch, fault, verdict):
    """A stand-in for Math-Verify that fails on `boom`, between two sound answers of which one is wrong."""
    program = ["def parse(text, **_):", "    if 'boom' in text:", f"        {fault}"]
    program += ["    return ''.join(one for one in text if one.isdigit())", ""]
    program += ["def verify(gold, answer, **_):", "    return gold == answer"]
    (tmp_path / "math_verify.py").write_text("\n".join(program))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    asked = [(SOUND, 5, True), (f"boom {SOUND}", 5, True), (f"boom {SOUND}", 5, False), (r"\boxed{6}", 5, False)]
    found = cross_check(asked, limit_seconds=2)
    faults = {key: found[key] for key in ("timeout", "crash")}
    if verdict == "agree":
        assert found == dict.fromkeys(COUNTS, 0) | {"checked": 4, "agree": 3, "theirs_only": 1}
    else:
        assert faults == {"timeout": 0, "crash": 0} | {verdict: 2}
        assert found["agree"] == 2
        assert found["ours_only"] == found["theirs_only"] == 0  # neither right nor wrong
    assert found["checked"] == 4 == sum(found[key] for key in COUNTS if key != "checked")


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{" + "(" * 3000 + "5" + ")" * 3000 + "}",
        r"\boxed{99999!!!!}",
        r"\boxed{\frac" * 500,
        r"\boxed{__import__('os').system('touch " + CANARY + "')}",
        r"\boxed{" + "9" * 100_000 + "}",
    ],
    ids=lambda response: response[:20],
)
def test_math_verify_itself_on_nasty_responses(response):
    """Whatever it makes of them, the next answer is graded as ever."""
    with MathVerify() as worker:
        assert worker.correct(SOUND, 5) is True  # has started: what follows is the answer's own time
        worker.limit_seconds = 2
        assert worker.correct(response, 5) in (False, "timeout", "crash")
        worker.limit_seconds = 60
        assert worker.correct(SOUND, 5) is True
