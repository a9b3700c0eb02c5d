"""The shape annotations of `core` and `methods` are checked in the tests of conftest.TYPED; here, that they are."""

import pytest
import torch

from entropy_dynamics.core import advantages, dynamics, objective

pytest.importorskip("beartype")

two, three = torch.zeros(2, 3), torch.zeros(2, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: dynamics.batch_entropy_change(two, two, three, 0.1),
        lambda: objective.token_divisors(two, two, torch.zeros(3, dtype=torch.int64)),
        lambda: advantages.whiten(two.int(), two),
    ],
)
def test_a_wrong_shape_is_found(wrong):
    with pytest.raises(Exception, match="Type-check error whilst checking the parameters"):
        wrong()
