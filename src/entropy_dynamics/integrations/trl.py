"""Entropy control in TRL's GRPOTrainer: token weights decided once per generation batch, TRL's own loss.

    from entropy_dynamics.integrations.trl import make_grpo_trainer
    trainer = make_grpo_trainer(GRPOTrainer, method="clip_b", share=0.001)(model=..., args=..., ...)

One forward pass without gradients computes log p, H, S* and E[S] of each token; statistics are over the generation
batch of all processes. See docs/integrations/trl.md.
"""

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.common import reported_metrics, token_weight_method
from entropy_dynamics.methods import Method
from entropy_dynamics.results.token_samples import sampled_steps, write_token_samples

if TYPE_CHECKING:
    from trl import GRPOTrainer

TESTED = "1.16"
HOOKS = ("_generate_and_score_completions", "_compute_loss", "_prepare_inputs")
TOKEN_TOTAL = ("cispo", "dapo", "vespo")  # losses divided by num_items_in_batch
MASK_TOTAL = ("grpo", "sapo", "bnpo")  # losses divided by the sum of their mask; the other divisors are constant
IDLE = 10  # batches in a row without a changed weight, after which a warning says so
Through = Literal["advantages", "loss_mask"]


def make_grpo_trainer(
    trainer: "type[GRPOTrainer]", method: str, *, through: Through | None = None, **params: Any
) -> "type[GRPOTrainer]":
    """Create a subclass of `trainer`, TRL's GRPOTrainer or a subclass of it, that weights tokens by `method`.

    Raises UserError for an unsuitable method or parameter, or a trainer without the methods in `HOOKS`.

    Args:
        method: a method that acts through token weights; `grpo` changes nothing, but reports the metrics.
        through: how the weights enter TRL's loss: through advantages [batch, token], or through the loss mask, which
            allows only 0 and 1. By default the advantages with the tested version of TRL, otherwise the mask: TRL's own
            trainers have one advantage per sequence, so the loss of a later version may broadcast others wrongly.
    """
    if missing := [hook for hook in HOOKS if not hasattr(trainer, hook)]:
        raise UserError(
            f"{trainer.__name__} of trl {version('trl')} has no {missing[0]}: it needs a GRPOTrainer of trl {TESTED}"
        )
    through = through or ("advantages" if version("trl").startswith(f"{TESTED}.") else "loss_mask")
    if through not in get_args(Through):
        raise UserError(f"through is {through!r}; it should be one of {', '.join(get_args(Through))}")
    control = {"entropy_control": token_weight_method(method, params, "TRL"), "through": through}
    return type(f"EntropyControl{trainer.__name__}", (EntropyControlMixin, trainer), control)


class EntropyControlMixin:
    """Mixin that must precede GRPOTrainer among the bases. `make_grpo_trainer` documents its attributes."""

    entropy_control: Method
    through: Through
    idle_batches = 0

    def _generate_and_score_completions(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if self.model.training:
            self._weight_tokens(output)
        return output

    @torch.no_grad()
    def _weight_tokens(self: Any, output: dict[str, Any]) -> None:
        """Compute the weights over the batch of all processes, and write this process's rows into `output`."""
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        advantages = output["advantages"]
        advantages = (advantages[:, None] if advantages.ndim == 1 else advantages).expand(mask.shape)
        stats = self._token_stats(output)
        whole_stats = stats.map(self._gathered)
        whole_advantages, whole_mask = self._gathered(advantages), self._gathered(mask)
        generator = torch.Generator(mask.device).manual_seed(self.args.seed + self.state.global_step)
        weights = self.entropy_control.checked_weights(whole_stats, whole_advantages, whole_mask, generator=generator)

        if (pushed := (whole_mask > 0) & (whole_advantages != 0)).any():  # others have nothing to drop
            self.idle_batches = self.idle_batches + 1 if (weights[pushed] == 1).all() else 0
            if self.idle_batches == IDLE and self.entropy_control.overrides("token_weights"):
                warnings.warn(
                    f"{type(self.entropy_control).__name__} has dropped no token in {IDLE} batches, which is plain "
                    "GRPO: give it a share of tokens to drop (clip_b, clip_v: share=0.001), or another threshold",
                    stacklevel=2,
                )

        first = self.accelerator.process_index * len(mask)
        local = weights[first : first + len(mask), : mask.shape[1]]
        if self.accelerator.is_main_process and self.state.global_step in sampled_steps(self.state.max_steps):
            self._write_samples(output, mask, stats, advantages, local)
        kept, masked = self.entropy_control.denominator == "kept", self.through == "loss_mask"
        if masked:
            self._check_mask(weights, kept)
        else:
            output["advantages"] = advantages * local
        if kept and self.loss_type in TOKEN_TOTAL:
            output["num_items_in_batch"] = (weights > 0).sum()
        if masked or (kept and self.loss_type not in TOKEN_TOTAL):
            output["tool_mask"] = (local > 0).to(mask.dtype)
        metrics = reported_metrics(whole_stats, whole_advantages, weights, whole_mask, self._get_learning_rate())
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _check_mask(self: Any, weights: Tensor, kept: bool) -> None:
        """Raise UserError if the loss mask cannot express the weights or the denominator of the method."""
        method = self.entropy_control
        name = type(method).__name__
        if not ((weights == 0) | (weights == 1)).all():
            raise UserError(
                f"{name} has weights other than 0 and 1, which a loss mask cannot carry: "
                f'through="advantages", with trl {TESTED}'
            )
        if not kept and method.overrides("token_weights") and self.loss_type in MASK_TOTAL:
            raise UserError(
                f"dropped tokens of {name} stay in the denominator (denominator='all'), and "
                f"loss_type={self.loss_type!r} divides by the loss mask: use dapo, or denominator='kept'"
            )

    def _write_samples(
        self: Any, output: dict[str, Any], mask: Tensor, stats: TokenStats, advantages: Tensor, weights: Tensor
    ) -> None:
        """Write responses of this step with the statistics of every token, for `entropy-dynamics lens`."""

        def response(row: int) -> dict[str, Any]:
            prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()]
            return {"prompt": self.processing_class.decode(prompt), "row": row}

        path = Path(self.args.output_dir) / "samples" / f"step{self.state.global_step}.parquet"
        prompts = torch.arange(len(mask)) // self.num_generations
        ids, text = output["completion_ids"], lambda token: self.processing_class.decode([token])
        write_token_samples(path, prompts, mask, ids, stats, advantages, weights, text, response)

    def _token_stats(self: Any, output: dict[str, Any]) -> TokenStats:
        """Statistics of this process's completions, in micro-batches of the size used in the update."""
        if "pixel_values" in output:
            raise UserError("entropy control reads text-only batches, and this one has images")
        ids, attention = (
            torch.cat([output[f"prompt_{name}"], output[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        tokens = output["completion_ids"]
        length, parts = tokens.shape[1], []
        vocabulary = self.accelerator.unwrap_model(self.model).config.get_text_config().vocab_size
        self.model.eval()  # without dropout: of the whole network, and no random number is drawn
        for rows in torch.arange(len(ids)).split(self.args.per_device_train_batch_size):
            with self.accelerator.autocast():
                result = self.model(
                    input_ids=ids[rows], attention_mask=attention[rows], logits_to_keep=length + 1, use_cache=False
                )
            if result.logits.shape[-1] != vocabulary:
                raise UserError(
                    f"the model's logits have {result.logits.shape[-1]} items, and its vocabulary {vocabulary}: they "
                    "may be hidden states (with Unsloth, set UNSLOTH_RETURN_HIDDEN_STATES=0)"
                )
            parts.append(token_stats(result.logits[:, -length - 1 : -1], tokens[rows], temperature=self.temperature))
        self.model.train()
        return TokenStats(**{name: torch.cat([part.columns()[name] for part in parts]) for name in parts[0].columns()})

    def _gathered(self: Any, values: Tensor) -> Tensor:
        """Gather to [batch of all processes, longest completion], with zeros on padding."""
        gathered: Tensor = self.accelerator.gather(self.accelerator.pad_across_processes(values.contiguous(), dim=1))
        return gathered
