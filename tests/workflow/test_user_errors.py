"""Mistakes on the command line: one line on stderr, exit code 2, nothing written."""

import errno
import os
import shlex
import shutil
from pathlib import Path

import pytest

from command_line import error, from_files
from conftest import MODEL, ROOT

OF_RUN = f"--model {MODEL} --method grpo"
LONG = "x" * 300  # no file system takes such a name
EVIL = "../../evil"


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Of the project's configs: no command of these tests may write them."""
    folder = tmp_path_factory.mktemp("copies")
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    before = files_in(folder)
    yield folder
    assert files_in(folder) == before


@pytest.fixture
def project(copies, tmp_path, monkeypatch):
    """Some folders deep so that a `../` shows."""
    (folder := tmp_path / "home" / "user" / "project").mkdir(parents=True)
    for name in ("configs", "experiments"):
        (folder / name).symlink_to(copies / name)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(project, tmp_path, capfd):
    """`refused(stage, ...)`: the message of a command that has to fail without a trace."""

    def call(*arguments: str) -> str:
        before = files_in(tmp_path)
        capfd.readouterr()
        message = error(capfd, *arguments)
        assert files_in(tmp_path) == before
        return message

    return call


def files_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


NAMES = ["../smoke", "/etc/passwd", "", "$(id)", "smoke\x00", LONG]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
@pytest.mark.parametrize("option", ["--scale", "--model", "--method"])
def test_names(refused, option, name):
    if option != "--scale":
        name = name.replace("smoke", "grpo" if option == "--method" else "qwen3-4b-base")
    values = {"--scale": "smoke", "--model": MODEL, "--method": "grpo"} | {option: name}
    message = refused("config", *(f"{key}={value}" for key, value in values.items()))
    what = f"{option.strip('-')} {name!r}" if name or option != "--model" else "--method needs --model: a run has both"
    assert what in message
    remedies = ("did you mean '", "known: ", "is not of the form name or name@parameter=value", "a run has both")
    assert any(remedy in message for remedy in remedies)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("clip_b@mu=nan", "it should be"),
        ("clip_b@mu=high", "valid number"),
        ("clip_b@mu=1,mu=2", "is not of the form name or name@parameter=value,..., each parameter once"),
        ("clip_b@", "method 'clip_b@' is not of the form name or name@parameter=value,..."),
        ("Clip_B", "unknown method 'Clip_B'; did you mean 'clip_b'?"),
        ("clip_b@mu=../../evil", "is not of the form"),
        ("clip_b@mmu=1", "unknown key 'method.params.mmu'"),
        ("clip_b@apply_to=nobody", "'negative', 'positive' or 'both'"),
        ("clip_v@max_frac=2", "less than or equal to 1"),
        ("clip_cov@lb=5", "it should be below ub (5.0)"),
        ("base@mu=1", "unknown key 'method.params.mu'"),
        ("grpo@engine.dtype=bfloat16", "engine.dtype=bfloat16 needs hardware.ranks or engine.name=vllm"),
    ],
)
def test_method_parameters(refused, method, message):
    assert message in refused("train", "--scale", "smoke", "--model", MODEL, f"--method={method}", "--seed", "0")


def test_the_untrained_model_is_never_trained(refused):
    assert "never trained" in refused(*f"train {OF_RUN} --method base --seed 0".split())


@pytest.mark.parametrize("seed", ["-1", "1.0", "00", "\u00b2", "9" * 20, "../1"], ids=ascii)
def test_seeds(refused, seed):
    assert "0 or more" in refused("train", *OF_RUN.split(), f"--seed={seed}")


FILE = " ".join(map(shlex.quote, from_files("x.jsonl")))  # of training problems


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("trian train", "unknown command 'trian'; did you mean 'train'?"),
        ("plan --target method", "unknown value of --target, 'method'; did you mean 'methods'?"),
        ("--verzion", "unrecognized arguments: --verzion; did you mean '--version'?"),
        # before --seed is missing
        (f"train {OF_RUN} --sed 0", "unrecognized arguments: --sed; did you mean '--seed'?"),
        ("train", "the following arguments are required: --model, --method, --seed"),
        (f"--scale desk train {OF_RUN}", "options follow their command: entropy-dynamics train "),
        ("--table compare a b", "options follow their command: entropy-dynamics compare --table a"),
        ("plan --colour", "arguments: --colour; the options are --scale, --results, --set, "),
        (f"pass_rates --model {MODEL}", "the scale names the model; for another one: --set "),
        ("summary results/laptop --colour", "unrecognized arguments: --colour; it has no options"),
        ("plan scale=desk", "unrecognized arguments: scale=desk; did you mean '--scale=desk'?"),
        ("plan seeds.tables=5", "arguments: seeds.tables=5; did you mean '--set seeds.tables=5'?"),
        ("plan --set seeds.tables 5", "'seeds.tables' has no value; write --set seeds.tables=VALUE"),
        ("plan --set 'seeds.tables: 5'", "'seeds.tables: 5' has no value; write --set seeds.tables=5"),
        (f"config {OF_RUN} --set", "argument --set: expected one argument"),
        ("config --model clip_v --method qwen3-4b-base", "unknown model 'clip_v'"),
        ("config --why ''", "unknown key ''; known: "),
        ("draw ../table1", "unknown table or figure '../table1'; did you mean 'table1'?"),
        ("draw table1", " is missing; make it with: snakemake --config scale=laptop -- results/"),
        ("draw --results nowhere", "nowhere/laptop has no seed with all runs of a table"),
        ("claims --results nowhere", "no folder nowhere/laptop; make it with: snakemake --config"),
        ("restore x --out mine/first", "mine/first: its last part should name a scale, as in "),
        ("archive results/laptop out", "no folder results/laptop; pass the folder of a scale"),
        (f"evaluate {OF_RUN} --seed 0 --datasets {EVIL}", f"no '{EVIL}'; known: aime24, aime25, "),
        (f"evaluate {OF_RUN} --seed 0 --temperatures hot", "'hot' is not a temperature: 0, which "),
        (f"model --model {MODEL} --set model.name={EVIL}", f"is '{EVIL}'; it should be '{MODEL}'"),
        (f"problems {FILE}", "data.train: x.jsonl is missing; it should be a .jsonl or .parquet file of problems"),
        (f"problems {FILE.replace('math', 'maths')}", "unknown task 'maths'; did you mean 'math'?"),
        (f"prompt --model {MODEL}", "no such file; create it with: entropy-dynamics problems"),
        (f"prompt --model {MODEL} --scale paper", "with: entropy-dynamics problems --scale paper"),
        (f"prompt --model {MODEL} --results 'my results'", "--scale laptop --results 'my results'"),
        ("summary results/desk", "claims.json; make it with: entropy-dynamics claims --scale desk"),
        ("watch --port 99999", "argument --port: '99999' is not a port, 0 to 65535"),
        ("pass-at-k x.jsonl --power 500", "'500' is not a number of points, up to 100"),
        ("entropy-check nan", "argument VALUE: 'nan' is not a finite number"),
        ("lens file --figure='none/at all/a.png'", "there is no folder none/at all"),
        ("entropy-check --write='none/at all/a.npz'", "there is no folder none/at all"),
        ("summary /", "argument FOLDER: '/' is not the folder of a scale, such as results/"),
        ("problems --results configs/base.yaml", "/data'; a part of this path is a file; name a folder"),
        (
            "problems --scale smoke --set data.evaluation.dapo500.size=100000",
            "data.evaluation.dapo500.size: 100000 leaves nothing of the 240 problems to train on; set lower: "
            "data.evaluation.dapo500.size, data.evaluation.validation.size",
        ),
        (
            "problems --scale smoke --set 'data.train={source: hub, repository: a/b, revision: main}'",
            "data.train.revision is 'main'; it should match pattern '^[0-9a-f]{40}$'",
        ),
        ("plan --scale gpu --set 'models=[]'", f"scale gpu has no model '{MODEL}', which its "),
    ],
    ids=lambda value: value[:60],
)
def test_commands(refused, command, message):
    assert message in refused(*shlex.split(command))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "change its permissions or name another folder, for results with --results FOLDER"),
        (errno.EPERM, "change its permissions or name another folder, for results with --results FOLDER"),
        (errno.EROFS, "name another folder, for results with --results FOLDER"),
        (errno.ENOSPC, "free some space, and run the same command again"),
    ],
)
def test_a_folder_that_cannot_be_written(refused, monkeypatch, code, remedy):
    def fails(*_, **__):
        raise OSError(code, os.strerror(code), "results/laptop")

    monkeypatch.setattr(Path, "mkdir", fails)  # permissions do not stop root
    assert refused("problems") == f"{os.strerror(code)}: 'results/laptop'; {remedy}"


ONE_PROBLEM = b'{"id": 1, "problem": "1+1", "answer": 2}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "none of its 0 problems is left"),
        ("x.jsonl", ONE_PROBLEM + b"\n" + ONE_PROBLEM[:20], "x.jsonl: line 3 is not a JSON object ("),
        (
            "x.jsonl",
            ONE_PROBLEM.replace(b"answer", b"answr"),
            "no column 'answer' (rename it, or set the source's answer_column); did you mean 'answr'",
        ),
        ("x.jsonl", b"[]\n", "x.jsonl: line 1 is not a JSON object (list instead)"),
        (
            "x.jsonl",
            ONE_PROBLEM.replace(b"2", b"\"__import__('os').system('touch evil')\""),
            "(1 x the answer is not an integer)",
        ),
        ("x.jsonl", ONE_PROBLEM.replace(b'"1+1"', b'["1+1"]'), "none of its 1 problems is left (1 x no problem text)"),
        ("x.parquet", b"", "x.parquet: not a readable parquet file ("),
        ("x.txt", ONE_PROBLEM, "x.txt should be a .jsonl or .parquet file of problems"),
    ],
)
def test_problem_files(refused, project, name, content, message):
    (project / name).write_bytes(content)
    got = refused("problems", *from_files(name))
    assert got.startswith("data.train: ")
    assert message in got
