"""Coverage-guided fuzzing of the grader, for as long as wanted: python tests/fuzz_grader.py -max_total_time=600

Needs atheris (pip install atheris). Every property of `grader_attacks.check` that fails ends it, with the input in a
file crash-*; arguments are those of libFuzzer.
"""

import sys

import atheris

with atheris.instrument_imports(include=["entropy_dynamics.tasks.grading"]):
    from grader_attacks import HUGE, PIECES, check

ANSWERS = [33, -33, 0, 3, 3300, 10**18 - 1]


def fuzz(data: bytes) -> None:
    """The bytes choose pieces of hostile responses and write what stands between them."""
    source = atheris.FuzzedDataProvider(data)
    answer = source.PickValueInList(ANSWERS)
    reason = source.PickValueInList(["stop", "length"])
    parts = []
    while source.remaining_bytes():
        if source.ConsumeBool():
            parts.append(source.PickValueInList(PIECES))
        elif source.ConsumeProbability() < 0.01:
            parts.append(source.PickValueInList(HUGE))
        else:
            parts.append(source.ConsumeUnicode(source.ConsumeIntInRange(0, 40)))
    check("".join(parts), answer, reason)


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
