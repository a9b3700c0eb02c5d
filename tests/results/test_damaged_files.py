"""Damaged files of results are named with their remedy, and nothing is written from them."""

import json
import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fault_harness import COMMANDS, EVALUATION, MODEL_FOLDER, RUN, assert_one_line, differences, files_in, truncate
from preloaded import program

FLIPS = 60
SEED = 6


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (f"{RUN}/metrics.parquet", "figure"),
        (f"{EVALUATION}/dapo500.parquet", "table"),
        (f"{MODEL_FOLDER}/model.json", "table"),
        ("data/train.parquet", "pass rates"),
        ("pass_rates/seed0.parquet", "train"),
        (f"{MODEL_FOLDER}/model.safetensors", "train"),
        (f"{MODEL_FOLDER}/tokenizer.json", "train"),
        (f"{MODEL_FOLDER}/config.json", "train"),
        ("data/aime24.parquet", "evaluate"),
        (f"{RUN}/policy/model.safetensors", "evaluate"),
    ],
)
def test_a_truncated_file_is_named_with_its_remedy(finished, stage, damaged, name):
    path = Path("results/smoke", damaged)
    truncate(path)
    if name == "train":
        shutil.rmtree(Path("results/smoke", RUN))
    before = files_in(finished / "results")
    assert_one_line(stage(*COMMANDS[name]), str(path.parent), "delete")
    assert files_in(finished / "results") == before


def test_a_claim_names_the_truncated_file_that_it_cannot_be_judged_by(stage):
    truncate(Path("results/smoke", RUN, "metrics.parquet"))
    code, _ = stage("claims")
    assert code == 0  # other claims are judged
    claims = json.loads(Path("results/smoke/claims.json").read_text())
    unsure = [claim for claim in claims if f"{RUN}/metrics.parquet" in claim["reason"]]
    assert unsure
    assert {claim["verdict"] for claim in unsure} == {"inconclusive"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("damaged", "name"), [(f"{EVALUATION}/dapo500.parquet", "table"), (f"{RUN}/metrics.parquet", "figure")]
)
def test_following_the_message_restores_the_file(finished, reference, stage, damaged, name):
    truncate(finished / "results/smoke" / damaged)
    _, text = stage(*COMMANDS[name])
    path, command = re.search(r"error: (\S+) .*; delete it and rerun: snakemake (.*)", text).groups()
    Path(path).unlink()
    subprocess.run([program("snakemake"), *shlex.split(command)], cwd=finished, check=True, capture_output=True)
    assert stage(*COMMANDS[name])[0] == 0
    assert differences(finished / "results/smoke", reference) == []


@pytest.mark.long
def test_verify_names_a_file_in_which_one_bit_is_flipped(finished, stage):
    """Random files of a finished scale, without its logs, each with one bit flipped at a random place."""
    place = random.Random(SEED)
    results = finished / "results/smoke"
    files = [path for name, path in files_in(results).items() if not name.startswith("logs/")]
    files = place.sample([path for path in files if path.stat().st_size], FLIPS)
    assert stage("verify")[0] == 0
    unseen = []
    for path in files:
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[place.randrange(len(whole))] ^= 1 << place.randrange(8)
        path.write_bytes(changed)
        code, said = stage("verify")
        path.write_bytes(whole)
        name, folder = path.relative_to(results).as_posix(), path.parent.relative_to(results).as_posix()
        told = name in said or f"{folder}: " in said  # a run whose record has another hash of an input is stale
        if not told and not (code == 0 and name.endswith("provenance.json")):  # the hardware in it has no hash
            unseen.append((name, code, said))
    assert unseen == []
