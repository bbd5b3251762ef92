"""The streamed files are safetensors, byte by byte as hashed."""

import hashlib
from pathlib import Path

import pytest
import torch
from leyden.learner.tensor_file import PIECE_BYTES, TensorFile, live
from safetensors.torch import load


def test_a_streamed_file_loads_as_what_was_written() -> None:
    tensors = {
        "f": torch.randn(3, 5),
        "strided": torch.randn(4, 6).t(),
        "half": torch.randn(7).bfloat16(),
        "whole": torch.arange(5),
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
        "large": torch.randn(PIECE_BYTES // 4 + 3),
    }
    file = TensorFile({name: live(t) for name, t in tensors.items()})
    digest = hashlib.sha256()
    data = b"".join(file.pieces(digest))
    assert len(data) == file.n_bytes
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()
    loaded = load(data)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_values_are_those_of_the_time_of_writing() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    file = TensorFile({"p": live(parameter, torch.bfloat16)})
    parameter.data.fill_(1.5)
    loaded = load(b"".join(file.pieces(hashlib.sha256())))
    assert loaded["p"].dtype is torch.bfloat16
    assert loaded["p"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("lora", [False, True])
def test_served_tensors_are_those_of_the_plain_model(tiny_model_dir: Path, lora: bool) -> None:
    from leyden.learner.policy import Lora, Policy
    from safetensors.torch import load_file

    policy = Policy(tiny_model_dir, torch.device("cpu"), Lora() if lora else None, gradient_checkpointing=False)
    base = load_file(tiny_model_dir / "model.safetensors")
    served = policy.served()
    assert served.keys() == base.keys()
    assert all(torch.equal(served[name].make(), base[name].bfloat16()) for name in base)


def test_served_adapters_are_merged(tiny_model_dir: Path) -> None:
    from leyden.learner.policy import Lora, Policy

    policy = Policy(tiny_model_dir, torch.device("cpu"), Lora(rank=2, alpha=4), gradient_checkpointing=False)
    for name, parameter in policy.trainable().items():
        if "lora_B" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    served = {name: tensor.make().float() for name, tensor in policy.served().items()}
    merged = policy.model.merge_and_unload().state_dict()
    for name, tensor in served.items():
        torch.testing.assert_close(tensor, merged[name], rtol=1e-2, atol=1e-3)
