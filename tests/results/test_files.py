"""Atomic writes, and one-line errors for damaged files."""

import json
import os
import socket
import subprocess
import sys
from functools import partial

import pandas as pd
import pyarrow.parquet as pq
import pytest

from entropy_dynamics.results.files import read_jobs, read_json, read_parquet, write_json, write_parquet, written_whole
from fault_harness import files_in, flip_a_bit, truncate
from mistakes import mistake


def test_a_file_appears_only_when_complete(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with written_whole(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across file systems is a copy
        assert "partial" in temporary.name
    assert path.read_text() == "half"
    assert [*files_in(tmp_path)] == ["new/folder/file.txt"]


@pytest.mark.parametrize(
    ("error", "kind"), [(ValueError, "file"), (KeyboardInterrupt, "directory"), (KeyboardInterrupt, "nothing")]
)
def test_a_crash_leaves_the_old_state(tmp_path, error, kind):
    path = tmp_path / "result"
    if kind == "directory":
        path.mkdir()
        (path / "old").write_text("old")
    elif kind == "file":
        path.write_text("old")
    before = [*files_in(tmp_path)]

    def crash():
        with written_whole(path) as temporary:
            if kind == "directory":
                (temporary / "deep").mkdir(parents=True)
            elif kind == "file":
                temporary.write_text("new, but only h")
            raise error

    with pytest.raises(error):
        crash()
    assert [*files_in(tmp_path)] == before
    assert kind != "file" or path.read_text() == "old"


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_files_that_a_library_writes_for_its_user_alone_are_shared_as_the_umask_says(
    tmp_path, umask, file_mode, folder_mode
):
    (tmp_path / "source").touch(0o600)
    before = os.umask(umask)
    try:
        with written_whole(tmp_path / "file") as temporary:
            temporary.touch(0o600)
        with written_whole(tmp_path / "folder") as temporary:
            (temporary / "inner").mkdir(0o700, parents=True)
            (temporary / "inner" / "weights").touch(0o600)
            (temporary / "script").touch(0o777)
            (temporary / "link").hardlink_to(tmp_path / "source")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes["file"] == modes["folder/inner/weights"] == file_mode
    assert modes["folder"] == modes["folder/inner"] == modes["folder/script"] == folder_mode
    assert modes["source"] == 0o600


def test_others_may_read_the_weights_of_a_model(prepared_results):
    """safetensors writes them for their user alone."""
    (probe := prepared_results.folder / "probe").touch()
    files = [path for path in prepared_results.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {path.stat().st_mode for path in files} == {probe.stat().st_mode}


def test_a_directory_replaces_the_old_one(tmp_path):
    path = tmp_path / "run"
    for names in (("a", "b"), ("b", "c")):
        with written_whole(path) as temporary:
            (temporary / "deep").mkdir(parents=True)
            for name in names:
                (temporary / "deep" / name).write_text(name * 2)
    assert [*files_in(tmp_path)] == ["run/deep/b", "run/deep/c"]
    assert (path / "deep" / "c").read_text() == "cc"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_content_is_flushed_before_the_rename(tmp_path, monkeypatch, kind):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("flush") or sync(descriptor))
    monkeypatch.setattr(os, "replace", lambda *paths: order.append("rename") or replace(*paths))
    with written_whole(tmp_path / "new") as temporary:
        if kind == "directory":
            temporary.mkdir()
        (temporary / "file" if kind == "directory" else temporary).write_text("x")
    assert order == [*["flush"] * (2 if kind == "directory" else 1), "rename", "flush"]
    assert [*files_in(tmp_path)] == ["new/file" if kind == "directory" else "new"]


def unfinished(folder, name, pid, host=None):
    return folder / f".{name}.{host or socket.gethostname()}.{pid}.partial"


def test_the_next_write_removes_what_a_killed_process_left(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()  # its process id is free now
    unfinished(tmp_path, "a.json", killed.pid).write_text("half")
    others = [
        unfinished(tmp_path, "a.json", os.getppid()),
        unfinished(tmp_path, "b.json", killed.pid),
        unfinished(tmp_path, "a.json", killed.pid, "another-node"),
    ]
    for one in others:
        one.write_text("of a running process, of another file, or of a node whose processes are unknown here")
    write_json(tmp_path / "a.json", 1)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.json", *others])


def damage_the_metadata_of_pandas(path):
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"pandas": b"[]"}), path)


@pytest.mark.parametrize("damage", [partial(flip_a_bit, position=30), truncate, damage_the_metadata_of_pandas])
def test_a_damaged_parquet_file_is_a_single_line_error(tmp_path, damage):
    path = tmp_path / "a.parquet"
    write_parquet(path, pd.DataFrame({"a": range(100)}))
    pd.testing.assert_frame_equal(read_parquet(path), pd.DataFrame({"a": range(100)}))
    damage(path)
    with mistake(match=r"a\.parquet is damaged \(.+\): delete it and rerun its stage$"):
        read_parquet(path)


@pytest.mark.parametrize("content", [b'{"a": 1', b'"\xff"', b"[" * 100_000])
def test_a_damaged_json_file_is_a_single_line_error(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with mistake(match=r"a\.json is damaged \(.+\): delete it and rerun its stage$"):
        read_json(tmp_path / "a.json")


def test_torn_lines_of_a_record_are_left_out(tmp_path):
    jobs = [{"rule": "train", "start": 1.5, "seconds": 2}, {"rule": "\u00e9", "start": 1, "seconds": 0.5}]
    whole = [json.dumps(job, ensure_ascii=False).encode() for job in jobs]
    torn = [b'{"rule": "\xff"}', whole[0][:-1], b"7", b"{}", b'{"rule": "train", "start": 1.5}', b"[" * 100_000]
    wrong = [json.dumps(jobs[0] | {key: None}).encode() for key in jobs[0]]
    (tmp_path / "jobs.jsonl").write_bytes(b"\n".join([*whole, *torn, *wrong]))
    assert read_jobs(tmp_path / "jobs.jsonl") == jobs
