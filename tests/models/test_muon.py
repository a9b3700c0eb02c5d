"""Muon against PyTorch's, and its orthogonalization against singular vectors."""

import pytest
import torch

from entropy_dynamics.models.muon import MOMENTUM, Muon, orthogonalized


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)])
def test_singular_vectors_stay_and_singular_values_come_near_1(shape):
    matrices = random(3, *shape) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ orthogonalized(matrices) @ right.mT
    moved = inner.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(inner, torch.diag_embed(moved), rtol=0, atol=1e-4)
    large = values > 1e-2 * matrices.norm(dim=(-2, -1))[:, None]
    assert ((moved[large] > 0.65) & (moved[large] < 1.25)).all()


def test_a_gradient_of_zeros_moves_nothing():
    assert torch.equal(orthogonalized(torch.zeros(1, 8, 4)), torch.zeros(1, 8, 4))


def test_steps_are_those_of_pytorch():
    shapes = [(64, 64), (96, 32), (64, 64), (32, 96)]  # two of them share a call
    ours, theirs = ([torch.nn.Parameter(random(*shape, seed=i)) for i, shape in enumerate(shapes)] for _ in range(2))
    start = [parameter.detach().clone() for parameter in ours]
    optimizers = Muon(ours, 0.1, 0.3), torch.optim.Muon(theirs, 0.1, 0.3, MOMENTUM)
    for step in range(3):
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for i, parameter in enumerate(parameters):
                parameter.grad = random(*parameter.shape, seed=100 * step + i)
            optimizer.step()
    for first, a, b in zip(start, ours, theirs, strict=True):  # PyTorch's iteration rounds to bf16
        assert (a - b).norm() < 0.02 * (a - first).norm()
