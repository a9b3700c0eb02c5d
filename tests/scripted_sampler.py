"""A sampler with given responses."""

from entropy_dynamics.sampling import Rollout


class Scripted:
    """A sampler whose sample k of problem i is the text `response(i, k)`, and which keeps what each call asks for."""

    def __init__(self, tokenizer, response):
        self.tokenizer, self.response, self.asked = tokenizer, response, []

    def sample(self, prompts, *, samples, **asked):
        self.asked.append(asked | {"samples": samples})
        rollouts = []
        for number, prompt in enumerate(prompts):
            for sample in range(samples):
                tokens = self.tokenizer.encode(self.response(number, sample), add_special_tokens=False)
                ids = [*tokens, self.tokenizer.eos_token_id]
                rollouts.append(Rollout(prompt.problem_id, sample, ids, "stop", [-0.25] * len(ids)))
        return rollouts
