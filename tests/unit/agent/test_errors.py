"""What becomes of errors that are none of ours before they stand in a note, an alarm or a manifest."""

from __future__ import annotations

import pytest
import torch

from training_agent.errors import in_short


def test_an_error_of_torch_that_lists_all_its_backends_is_one_short_line() -> None:
    with pytest.raises(NotImplementedError) as caught:
        torch.linalg.vector_norm(torch.eye(2).to_sparse())
    assert len(str(caught.value)) > 2_000 and "\n" in str(caught.value)
    line = in_short(caught.value)
    assert line.startswith("NotImplementedError: Could not run 'aten::linalg_vector_norm'")
    assert len(line) <= 300 and "\n" not in line
    assert in_short(ValueError("")) == "ValueError: "
