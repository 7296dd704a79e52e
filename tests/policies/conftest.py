"""What the tests of native functions for networks share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """With more threads PyTorch's own functions may be taken."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
