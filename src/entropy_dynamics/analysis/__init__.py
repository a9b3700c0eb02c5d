"""From result files to numbers: scores, curves, intervals, verdicts. No torch, no drawing."""
