"""What the models are asked: problems, prompts, and how an answer is graded."""
