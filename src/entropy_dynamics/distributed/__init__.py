"""Ranks of one run: joining, launching, claiming devices, sharding parameters."""
