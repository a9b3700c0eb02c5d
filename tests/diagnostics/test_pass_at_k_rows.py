"""pass-at-k: which rows are samples of one policy, and which are policies of their own."""

import pytest

from command_line import error, output, run, write_lines
from graded_files import CURVE, GRADES, curve_of, first_row, graded, rows, written


# ---------------------------------------------------------------- seeds and ids
@pytest.mark.parametrize("name", ["seed", "trial_id", "epoch", "run", "Run Number"])
@pytest.mark.parametrize(
    "value",
    [int, str, float, "try-{}".format, "seed_{}".format],
    ids=["int", "str", "float", "try-", "seed_"],
)
def test_a_number_of_any_type_of_which_a_problem_has_one_row_is_a_sample(name, value, tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", rows(**{name: lambda _, sample, __: value(sample)}))
    assert curve_of(capsys, path)[0] == CURVE


@pytest.mark.parametrize("name", ["run_id", "trial_name", "job_id", "experiment", "seed"])
def test_an_id_that_no_two_rows_share_names_a_sample(name, tmp_path, capsys):
    table = rows(**{name: lambda place, _, row: f"{place}__{row * 7919:08x}"})
    path = write_lines(tmp_path / "all.jsonl", table)
    assert curve_of(capsys, path) == (CURVE, "")
    steps = [row | {"step": step, name: f"{row[name]}{step}"} for step in (0, 20) for row in table]
    header = run(capsys, "pass-at-k", write_lines(path, steps)).split("\n")[0].split()
    assert header[1::3] == ["step=0", "step=20", "difference"]


@pytest.mark.parametrize("name", ["run", "seed", "name"])
def test_names_that_differ_in_more_than_the_number_of_a_sample_are_policies(name, tmp_path, capsys):
    """Sizes and learning rates are numbers too; what to do if they are samples is said."""
    for names in (["qwen-7b", "qwen-32b"], ["lr1e-6", "lr3e-6"], ["step100", "step200"], ["grpo_seed1", "ppo_seed1"]):
        two = [row | {name: names[at % 2]} for at, row in enumerate(rows()) if at % 4 < 2]
        out, err = output(capsys, "pass-at-k", write_lines(tmp_path / "all.jsonl", two))
        assert len(out.split("\n")[0].split()) == 1 + 3 * 3
        assert f"if they are samples of one policy, remove the column {name}\n" in err


def in_files(folder, named, suffix="jsonl"):
    """A file per sample."""
    for sample in range(4):
        written(folder / f"{named.format(sample)}.{suffix}", rows()[sample::4])
    return folder


@pytest.mark.parametrize("named", ["output-rs{}", "seed_{}", "math.run={}", "aime-trial{}-done"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_files_named_by_the_seed_are_samples(named, suffix, tmp_path, capsys):
    found, err = curve_of(capsys, in_files(tmp_path / "run", named, suffix))
    assert found == CURVE
    assert err == f"{tmp_path}/run: file numbers the samples ({named.format('*')})\n"


def test_a_greedy_file_beside_those_of_seeds_is_a_policy_of_its_own(tmp_path, capsys):
    folder = in_files(tmp_path / "run", "output-rs{}")
    write_lines(folder / "output.jsonl", [{"problem_id": name, "correct": 1} for name in GRADES])
    header, first = run(capsys, "pass-at-k", folder).splitlines()
    assert header.split()[1::3] == ["file=output-rs*", "file=output", "difference"]
    assert first.split()[1::3] == ["43.8", "100.0", "56.2"]


@pytest.mark.parametrize("files", [4, 9])
def test_files_of_which_nothing_says_that_they_are_samples_are_columns(files, tmp_path, capsys):
    """verl names them by steps."""
    for step in range(files):
        write_lines(tmp_path / f"val/{step}.jsonl", [{"problem_id": name, "correct": 1} for name in GRADES])
    remedy = "; if they are samples of one policy, join the files into one"
    if files == 4:
        assert output(capsys, "pass-at-k", tmp_path / "val")[1].endswith(f"{remedy}\n")
    else:
        message = f"{tmp_path}/val has rows of file=0, file=1 and 7 more; keep those of one{remedy}"
        assert error(capsys, "pass-at-k", tmp_path / "val") == message


# ---------------------------------------------------------------- repeated rows
NUMBERED = {"sample_idx": lambda _, sample, __: sample, "response": lambda *at: f"It is {at[2] // 2}."}


def test_rows_that_a_resumed_run_or_every_rank_writes_again_are_left_out(tmp_path, capsys):
    once = rows(**NUMBERED)
    path = tmp_path / "all.jsonl"
    of_rank = [[row | {"rank": rank, "timestamp": rank + 0.5} for row in once] for rank in range(3)]
    for first, again in ((once, once[5:9]), (once, once), (once, 6 * once), (of_rank[0], of_rank[1] + of_rank[2])):
        found, err = curve_of(capsys, write_lines(path, first + again))
        assert found == CURVE
        assert err.startswith(f"{path}: {len(again)} of {16 + len(again)} rows repeat another row and are left out\n")


def test_rows_are_repeated_only_if_all_of_their_lists_are(tmp_path, capsys):
    once = [row | {"tokens": [row["correct"]] * 1200, "seed": at % 4} for at, row in enumerate(rows())]
    path = written(tmp_path / "all.parquet", once + once[:3])
    assert curve_of(capsys, path) == (CURVE, f"{path}: 3 of 19 rows repeat another row and are left out\n")
    again = [row | {"tokens": [*row["tokens"][:-1], 7]} for row in once[:4]]
    written(path, once + again)
    assert "left out" not in output(capsys, "pass-at-k", path)[1]


@pytest.mark.parametrize("numbered", [{}, {"sample_idx": lambda _, sample, __: sample}], ids=["no number", "numbers"])
def test_a_response_that_is_there_several_times_is_counted_but_stays(numbered, tmp_path, capsys):
    """A model may answer twice in the same words, so these are samples."""
    path = write_lines(tmp_path / "all.jsonl", rows(response=lambda place, _, __: f"It is {place}.", **numbered))
    again = 12 - 1 - 1  # problems a and b have right and wrong ones
    found, err = curve_of(capsys, path)
    assert (found, err) == (CURVE, f"{path}: {again} of 16 samples repeat an earlier response; are they copies?\n")
    assert curve_of(capsys, write_lines(path, rows())) == (CURVE, "")
    assert curve_of(capsys, write_lines(path, rows(response=lambda *at: str(at)))) == (CURVE, "")


# ---------------------------------------------------------------- policies
WEAK, STRONG = {"a": [1, 0], "b": [0, 0]}, {"a": [1, 1], "b": [1, 0]}


POLICIES = ["global_step", "checkpoint_path", "temperature", "Run Name", "method", "seed"]


@pytest.mark.parametrize("name", [*POLICIES, "filter", "dataset"])  # or graders, or data sets
def test_rows_of_two_policies_are_two_columns(name, tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", graded(WEAK, **{name: "x"}) + graded(STRONG, **{name: "y"}))
    named = {f"{name}=x": 25.0, f"{name}=y": 75.0}
    if " " not in name:
        assert first_row(capsys, path) == {"k": 1.0, **named, "difference": 50.0}
    assert [line.split()[0] for line in run(capsys, "pass-at-k", path).splitlines()[1:]] == ["1", "2"]


def test_a_folder_of_steps_is_a_column_per_step_even_without_common_problems(tmp_path, capsys):
    write_lines(tmp_path / "val/0.jsonl", graded(WEAK, step=0))
    write_lines(tmp_path / "val/20.jsonl", graded({"c": [1, 1], "d": [1, 0]}, step=20))
    assert first_row(capsys, tmp_path / "val") == {"k": 1, "step=0": 25.0, "step=20": 75.0}


def test_files_of_a_folder_with_the_same_problems_are_columns(tmp_path, capsys):
    for name, grades in (("completions_00001", WEAK), ("completions_00002", STRONG)):
        written(tmp_path / f"run/{name}.parquet", graded(grades))
    expected = {"file=completions_00001": 25.0, "file=completions_00002": 75.0, "difference": 50.0}
    assert first_row(capsys, tmp_path / "run") == {"k": 1, **expected}


def test_data_sets_with_other_ids_are_no_columns(tmp_path, capsys):
    apart = graded({"a": [1, 0]}, dataset="x") + graded({"b": [1, 1]}, dataset="y")
    assert first_row(capsys, write_lines(tmp_path / "apart.jsonl", apart)) == {"k": 1, "apart": 75.0}


@pytest.mark.parametrize("numbers", ["seed", "trial_id"])
def test_a_number_per_sample_and_a_name_per_problem_split_nothing(numbers, tmp_path, capsys):
    columns = {numbers: lambda _, sample, __: sample, "name": lambda place, *_: "ab"[place]}
    path = write_lines(tmp_path / "one.jsonl", graded(STRONG, **columns))
    assert first_row(capsys, path) == {"k": 1, "one": 75.0}


def test_many_policies_in_a_file_are_one_line(tmp_path, capsys):
    table = [row for step in range(9) for row in graded(WEAK, step=step)]
    path = write_lines(tmp_path / "all.jsonl", table)
    message = f"{path} has rows of step=0, step=1 and 7 more; keep those of one"
    assert error(capsys, "pass-at-k", path) == message
    write_lines(path, table[:8])
    message = f"{path} has rows of step=0, step=1; --power takes those of one"
    assert error(capsys, "pass-at-k", path, "--power", 5) == message


def test_a_session_of_several_outputs_is_one_sample_of_its_prompt(tmp_path, capsys):
    """verl's V1 trainer; the input of a later output has the conversation so far, and its grade counts."""
    rows = [
        {"uid": f"{prompt}_{session}_{output}", "input": prompt + "..." * output, "score": int(output == 1 == session)}
        for prompt in ("p_1", "q")
        for session in (0, 1)
        for output in (1, 0)
    ]
    path = write_lines(tmp_path / "v1.jsonl", rows)
    assert first_row(capsys, path) == {"k": 1, "v1": 50.0}
    assert run(capsys, "pass-at-k", path, "--problem", "uid") == run(capsys, "pass-at-k", path)
    assert run(capsys, "pass-at-k", path).splitlines()[2].split()[:2] == ["2", "100.0"]
    two_steps = [row | {"step": step, "score": row["score"] * step} for step in (0, 1) for row in rows]
    expected = {"k": 1, "step=0": 0.0, "step=1": 50.0, "difference": 50.0}
    assert first_row(capsys, write_lines(path, two_steps)) == expected
