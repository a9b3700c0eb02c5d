"""Competition mathematics with integer answers: DAPO-Math-17k, AIME, and files of the same kind."""

from entropy_dynamics.tasks.integers import IntegerTask

# The original DAPO-Math-17k puts every question between these two texts.
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'


class Math(IntegerTask):
    name = "math"

    def strip_instructions(self, text: str) -> str:
        """Remove DAPO's instructions on the answer format, as `instruction` asks for a different one."""
        stripped = text.strip()
        if stripped.startswith(_DAPO_BEFORE) and stripped.endswith(_DAPO_AFTER):
            return stripped[len(_DAPO_BEFORE) : -len(_DAPO_AFTER)].strip()
        return text


TASK = Math()
