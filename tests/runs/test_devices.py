from __future__ import annotations

import pytest
import torch

from quintet.errors import QuintetError
from quintet.runs.devices import cores_for_decoding, device_name, pick_device, tensor_core_products


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [device_name(name, has_gpu=True) for name in ("auto", "cuda", "cpu")] == ["cuda:0", "cuda:0", "cpu"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [device_name(name, has_gpu=True) for name in ("auto", "cuda", "cuda:3")] == ["cuda:1", "cuda:1", "cuda:3"]
    assert device_name("auto", has_gpu=False) == "cpu"


def test_devices_that_are_not_there_are_told() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(QuintetError, match="no device"):
            pick_device(name)


def test_cores_are_left_to_decoding_while_an_accelerator_computes() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with cores_for_decoding(torch.device("cpu")):
            assert torch.get_num_threads() == 2, "here they are the tower's"
        with cores_for_decoding(torch.device("meta")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_tensor_cores_multiply_only_while_they_are_asked_to() -> None:
    for device, on, expected in (("cuda", True, "high"), ("cuda", False, "highest"), ("cpu", True, "highest")):
        with tensor_core_products(torch.device(device), on):
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == "highest"
