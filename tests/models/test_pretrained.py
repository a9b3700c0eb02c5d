"""Pretrained models: from a directory and from a made-up Hub, whole, in safetensors and of the right shape."""

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from command_line import error
from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.files import sha256
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import write_problems
from mistakes import mistake
from published_models import MODEL, SIZES, TEXT, byte_level_tokenizer, prepare, settings, write_model

REVISION = "0123456789abcdef0123456789abcdef01234567"
ROOT_FILES = {"config.json", "generation_config.json", "model.json", "tokenizer.json", "tokenizer_config.json"}
ROOT_FILES |= {"chat_template.jinja"}


@pytest.fixture
def source(tmp_path):
    return write_model(tmp_path / "source")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("sharded"), max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return folder


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


# ---------------------------------------------------------------- from a directory
def test_a_sharded_model_is_copied_whole_and_its_source_unchanged(sharded, tmp_path):
    before = contents(sharded)
    (tmp_path / "models").mkdir()
    out = prepare(sharded, tmp_path / "models" / MODEL)
    shards = {file.name for file in sharded.glob("*.safetensors")}
    assert len(shards) > 2
    index = {"model.safetensors.index.json"}
    assert {file.name for file in out.iterdir()} == ROOT_FILES | shards | index
    assert [file.name for file in out.parent.iterdir()] == [MODEL]  # nothing half-written, nothing left over

    facts = json.loads((out / "model.json").read_text())
    model, tokenizer = load_policy(out)
    torch.manual_seed(1)
    expected = Qwen2ForCausalLM(model.config).to(torch.bfloat16).float()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert facts.pop("config")["model.path"] == str(sharded)
    assert facts == {
        "name": MODEL,
        "label": "Qwen2.5-7B-Instruct",
        "toy": False,
        "substitute": False,
        "pretrained": "Qwen/Qwen2.5-7B-Instruct",
        "revision": None,  # a directory's is not known
        "architecture": "qwen2",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": {name: sha256(sharded / name) for name in sorted(shards)},
        "outputs": {
            file.name: sha256(file)
            for file in out.iterdir()
            if file.suffix != ".safetensors" and file.name != "model.json"
        },
    }
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    shutil.rmtree(out)
    assert contents(sharded) == before


def test_other_files_of_a_directory_are_not_copied(source, tmp_path):
    for name in ("modeling_qwen.py", "pytorch_model.bin", "training_args.bin", "consolidated.safetensors", "README.md"):
        (source / name).write_bytes(b"no part of the model")
    out = prepare(source, tmp_path / MODEL)
    assert {file.name for file in out.iterdir()} == ROOT_FILES | {"model.safetensors"}


@pytest.mark.parametrize("shards", ["kept", "gone"])
def test_a_whole_file_is_the_model_beside_an_index_of_older_weights(sharded, shards, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(sharded, source)
    if shards == "gone":
        for file in source.glob("*.safetensors"):
            file.unlink()
    torch.manual_seed(2)
    newer = Qwen2ForCausalLM(Qwen2Config(**SIZES)).to(torch.bfloat16)
    save_file(dict(newer.state_dict()), source / "model.safetensors", {"format": "pt"})
    out = prepare(source, tmp_path / MODEL)
    assert {file.name for file in out.iterdir()} == ROOT_FILES | {"model.safetensors"}
    pairs = zip(load_policy(out)[0].parameters(), newer.parameters(), strict=True)
    assert all(torch.equal(written, new.float()) for written, new in pairs)


def test_a_weight_in_two_files_is_refused(sharded, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(sharded, source)
    first, *_, last = sorted(source.glob("*.safetensors"))
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(last) | {name: torch.zeros_like(tensor)}, last, {"format": "pt"})
    with mistake(f"{name} is in {first.name} and in {last.name}"):
        prepare(source, tmp_path / MODEL)


def test_a_path_that_is_no_directory_of_a_model(tmp_path):
    (file := tmp_path / "model.gguf").touch()
    for path, fault in ((file, f"is a file; pass the directory that it is in, {tmp_path}"), (file / "a", "is missing")):
        with mistake(f"model.path should be the directory of a model; {path} {fault}"):
            prepare_pretrained(settings(f"model.path={path}"), tmp_path / MODEL, [])


def test_a_path_of_a_model_that_is_a_toy_here_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    said = error(capsys, "model", "--scale", "smoke", "--model", MODEL, "--set", f"model.path={tmp_path}")
    assert said == f"--set model.path: {MODEL} is a toy model at scale smoke; take another scale, such as paper"


def test_a_tokenizer_larger_than_the_embeddings_is_refused_if_its_tokens_are_used(tmp_path):
    problem = Problem("p", "What is 1+1?", "2", "math")

    def prepared(**changed):
        source, tokenizer = write_model(tmp_path / "source"), byte_level_tokenizer()
        tokenizer.add_tokens([f"<{number}>" for number in range(SIZES["vocab_size"])], special_tokens=True)
        tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        for name, value in changed.items():
            setattr(tokenizer, name, value)
        tokenizer.save_pretrained(source)
        shutil.rmtree(tmp_path / MODEL, ignore_errors=True)
        prepare_pretrained(settings(f"model.path={source}"), tmp_path / MODEL, [problem])

    prepared(pad_token="<319>")
    size = len(byte_level_tokenizer()) + SIZES["vocab_size"]
    about = f"the tokenizer has {size} tokens, the embeddings {SIZES['vocab_size']}: '<319>', "
    with mistake(f"{about}the end token, has none"):
        prepared(eos_token="<319>")
    with mistake(f"{about}a token of the prompts, has none"):
        prepared(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}<319>")
    assert not (tmp_path / MODEL).exists()


def test_the_tokenizer_is_the_one_in_its_file(tmp_path):
    """R1-Distill-Llama names the class of another tokenizer; transformers would rebuild it and give other ids."""
    source = write_model(tmp_path / "source")
    LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=8192)).save_pretrained(source)
    named = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": "LlamaTokenizerFast"}
    (source / "tokenizer_config.json").write_text(json.dumps(named | {"legacy": True, "add_bos_token": True}))
    _, tokenizer = load_policy(prepare(source, tmp_path / MODEL, "model.shape.architecture=llama"))
    ids = Tokenizer.from_file(str(source / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.encode(TEXT, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == TEXT


def test_a_broken_model_is_one_line_and_leaves_nothing(sharded, tmp_path):
    out = tmp_path / "out" / MODEL
    shards = sorted(file.name for file in sharded.glob("*.safetensors"))

    def refused(message, change):
        source = tmp_path / "broken"
        shutil.copytree(sharded, source)
        change(source)
        with mistake(match=message):
            prepare(source, out)
        assert not out.parent.exists() or not list(out.parent.iterdir())
        shutil.rmtree(source)

    def only_pickles(source):
        for file in source.glob("*.safetensors*"):
            file.rename(source / file.name.replace("safetensors", "bin"))

    def truncate(source):
        content = (source / shards[0]).read_bytes()
        (source / shards[0]).write_bytes(content[: len(content) // 2])

    def edit_index(source, **weights):
        path = source / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file != shards[-1]} | weights
        path.write_text(json.dumps(index))

    refused("1 of 1 safetensors files are missing: model.safetensors", only_pickles)
    refused(f"1 of {len(shards)} safetensors files are missing: {shards[1]}", lambda it: (it / shards[1]).unlink())
    refused("safetensors files are missing: secret", lambda it: edit_index(it, x="../secret"))
    refused(rf"{shards[0]}: not a complete safetensors file", truncate)
    refused(r"\d+ weights are missing, unknown or of another shape, for example ", edit_index)
    refused(r"no model in .*: it has no config.json", lambda it: (it / "config.json").unlink())
    refused(r"config.json is damaged", lambda it: (it / "config.json").write_text("{"))
    refused(
        r"no tokenizer in ", lambda it: [(it / f"{name}.json").unlink() for name in ("tokenizer", "tokenizer_config")]
    )
    refused(r"its tokenizer does not load", lambda it: (it / "tokenizer.json").write_text("{}"))


def test_every_difference_from_the_shape_is_named(source, tmp_path):
    differences = "layers is 2, not 28; tied_embeddings is False, not True"
    with mistake(match=f"^{source}/config.json differs from model.shape: {differences}$"):
        prepare(source, tmp_path / MODEL, "model.shape.layers=28", "model.shape.tied_embeddings=true")


def test_a_revision_is_a_whole_commit(tmp_path):
    with pytest.raises(UserError, match=r"model.revision is 'a09a354'.*40 hex digits"):
        prepare_pretrained(settings("model.revision=a09a354"), tmp_path / MODEL, [])


def test_a_smaller_model_in_place_of_the_papers_is_a_substitute(source, tmp_path):
    layout = Layout(tmp_path)
    prepare(source, layout.model(MODEL, 0), "model.substitute=true", "model.pretrained=Qwen/Qwen2.5-0.5B-Instruct")
    facts = json.loads((layout.model(MODEL, 0) / "model.json").read_text())
    assert (facts["substitute"], facts["pretrained"]) == (True, "Qwen/Qwen2.5-0.5B-Instruct")


# ---------------------------------------------------------------- from the Hub
class Hub(ThreadingHTTPServer):
    """The part of the Hugging Face Hub's interface that a download uses, over the files of one directory."""

    daemon_threads = True

    def __init__(self, folder):
        self.folder = folder
        self.sent = []  # names of files
        self.broken = None  # name of a file that it fails to send, once another shard is on its way
        self.another_sent = threading.Event()
        super().__init__(("127.0.0.1", 0), HubRequest)


class HubRequest(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, path = self.server, self.path.partition("?")[0]
        if path == f"/api/models/Qwen/Qwen2.5-7B-Instruct/tree/{REVISION}":
            files = [file for file in hub.folder.rglob("*") if file.is_file()]
            names = [str(file.relative_to(hub.folder)) for file in files]
            about = ({"size": file.stat().st_size, "oid": sha256(file)} for file in files)
            named = zip(names, about, strict=True)
            tree = [{"type": "file", "path": name} | more for name, more in named]
            self.reply(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
            return
        found = re.fullmatch(rf"/Qwen/Qwen2.5-7B-Instruct/resolve/{REVISION}/(.+)", path)
        if found is None or not (hub.folder / found[1]).is_file():
            self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        name, file = found[1], hub.folder / found[1]
        if self.command == "GET" and name == hub.broken:
            hub.another_sent.wait(timeout=10)
            self.reply(500, b"", {})
            return
        self.reply(200, file.read_bytes(), {"ETag": f'"{sha256(file)}"', "X-Repo-Commit": REVISION})
        if self.command == "GET":
            hub.sent.append(name)
            if name.endswith(".safetensors"):
                hub.another_sent.set()

    do_HEAD = do_GET

    def reply(self, status, content, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(sharded, tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    shutil.copytree(sharded, folder)
    (folder / "original").mkdir()
    for name in ("modeling_qwen.py", "pytorch_model.bin", "README.md", "original/model.safetensors"):
        (folder / name).write_bytes(b"no part of the model")
    server = Hub(folder)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    reach(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


def reach(monkeypatch, address):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_an_interrupted_download_resumes(hub, tmp_path):
    out = tmp_path / "models" / MODEL
    config = settings(f"model.revision={REVISION}")
    hub.broken = "model-00002-of-00004.safetensors"
    with mistake(match=r"^Qwen/Qwen2.5-7B-Instruct at 01234567 cannot be downloaded .* model.path"):
        prepare_pretrained(config, out, [])
    assert not out.exists()
    first, broken = set(hub.sent), hub.broken
    assert any(name.endswith(".safetensors") for name in first)
    hub.broken = None
    hub.sent.clear()
    prepare_pretrained(config, out, [])
    assert broken in hub.sent
    assert not first & set(hub.sent)  # what was there was not downloaded again
    assert not {"modeling_qwen.py", "pytorch_model.bin", "original/model.safetensors"} & {*first, *hub.sent}
    taken = {file.name for file in out.iterdir()}
    assert taken == ROOT_FILES | {"model.safetensors.index.json"} | {it.name for it in hub.folder.glob("*.safetensors")}
    facts = json.loads((out / "model.json").read_text())
    assert facts["revision"] == REVISION
    assert facts["weights_sha256"] == {file.name: sha256(file) for file in sorted(hub.folder.glob("*.safetensors"))}
    assert load_policy(out)[0].config.num_hidden_layers == 2
    assert [path.name for path in out.parent.iterdir()] == [MODEL]


def test_a_wrong_shape_is_seen_before_the_weights_are_downloaded(hub, tmp_path):
    with pytest.raises(UserError, match="layers is 2, not 28"):
        prepare_pretrained(settings(f"model.revision={REVISION}", "model.shape.layers=28"), tmp_path / MODEL, [])
    assert "config.json" in hub.sent
    assert not any(name.endswith(".safetensors") for name in hub.sent)


def test_a_revision_that_the_hub_does_not_have(hub, tmp_path):
    with pytest.raises(UserError, match="at ffffffff cannot be downloaded"):
        prepare_pretrained(settings(f"model.revision={'f' * 40}"), tmp_path / MODEL, [])


def test_without_a_network_the_alternative_is_named(tmp_path, monkeypatch, capsys):
    reach(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in load_config("paper").data.sets:
        problem = Problem(f"{name}-0", "7^2", "49", "math")
        write_problems(Layout.of("paper", tmp_path).problems(name), [problem])
    for _ in range(2):  # what the first try leaves must not look like a model to the second
        where = ["--scale", "paper", "--results", tmp_path]
        said = error(capsys, "model", "--model", MODEL, *where)
        assert said.startswith("Qwen/Qwen2.5-7B-Instruct at a09a3545 cannot be downloaded from the Hugging Face Hub")
        assert "model.path" in said
