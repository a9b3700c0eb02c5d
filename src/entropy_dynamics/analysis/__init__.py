"""From result files to numbers: experiments, scores, curves, intervals, verdicts. No torch, no drawing."""
