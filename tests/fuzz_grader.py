"""Coverage-guided fuzzing of the graders, for as long as wanted: python tests/fuzz_grader.py -max_total_time=600

Needs atheris (pip install atheris). Every property of `grader_attacks.check` that fails ends it, with the input in a
file crash-*; arguments are those of libFuzzer.
"""

import sys

import atheris

with atheris.instrument_imports(include=["entropy_dynamics.tasks"]):
    from grader_attacks import ANSWERS, HUGE, PIECES, check, countdown, sums

PROBLEMS = [countdown(), *map(sums, ANSWERS)]


def fuzz(data: bytes) -> None:
    """The bytes choose pieces of hostile responses and write what stands between them."""
    source = atheris.FuzzedDataProvider(data)
    problem = source.PickValueInList(PROBLEMS)
    reason = source.PickValueInList(["stop", "length"])
    parts = []
    while source.remaining_bytes():
        if source.ConsumeBool():
            parts.append(source.PickValueInList(PIECES))
        elif source.ConsumeProbability() < 0.01:
            parts.append(source.PickValueInList(HUGE))
        else:
            parts.append(source.ConsumeUnicode(source.ConsumeIntInRange(0, 40)))
    check("".join(parts), problem, reason)


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
