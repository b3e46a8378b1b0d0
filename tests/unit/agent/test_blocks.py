"""How a model is divided into blocks: a decoder into its layers, a ResNet into its bottlenecks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from examples.llama import Llama, ModelConfig
from training_agent._blocks import Block, blocks_of


class Called(nn.Module):
    """What has a forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Layer(Called):
    """Its feed-forward is a list of two Linear layers, as many are written."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.feed_forward = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Dropout(0.1))


class Bottleneck(Called):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)
        self.downsample = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))


class Stage(Called):
    """One of several in a list, with a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.merge = nn.Linear(4, 4)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(5, 4),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Layer() for _ in range(3)),
                "ln_f": nn.LayerNorm(4),
            }
        )
        self.head = nn.Linear(4, 5, bias=False)


def names(root: nn.Module) -> list[str]:
    return [block.name for block in blocks_of(root)]


def test_a_decoder_is_divided_into_its_layers() -> None:
    assert names(Llama(ModelConfig(layers=2))) == ["embedding", "blocks.0", "blocks.1", "norm", "head"]
    inside = [f"transformer.{n}" for n in ("wte", "h.0", "h.1", "h.2", "ln_f")]
    assert names(Gpt()) == [*inside, "head"]


def test_a_resnet_is_divided_into_its_bottlenecks() -> None:
    stem = [("conv", nn.Conv2d(3, 4, 7)), ("norm", nn.BatchNorm2d(4)), ("relu", nn.ReLU())]
    root = nn.Sequential()
    for name, module in (
        *stem,
        ("layer1", nn.Sequential(Bottleneck(), Bottleneck())),
        ("layer2", nn.Sequential(Bottleneck(), Bottleneck())),
        ("head", nn.Linear(4, 2)),
    ):
        root.add_module(name, module)
    bottlenecks = [f"layer{i}.{j}" for i in (1, 2) for j in (0, 1)]
    assert names(root) == ["conv", "norm", *bottlenecks, "head"]


def test_stages_of_layers_are_divided_into_layers() -> None:
    root = nn.Module()
    root.stages = nn.ModuleList(Stage() for _ in range(2))
    layers = [[f"stages.{i}.layers.0", f"stages.{i}.layers.1", f"stages.{i}.merge"] for i in (0, 1)]
    assert names(root) == layers[0] + layers[1]


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ["0", "2"]),
        (
            nn.Sequential(nn.Flatten(), nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))),
            ["1.0", "1.1", "1.2"],
        ),
        (nn.Linear(2, 2), [""]),
        (nn.Sequential(nn.ReLU(), nn.Dropout()), []),
    ],
)
def test_small_models_have_blocks_too(root: nn.Module, expected: list[str]) -> None:
    assert names(root) == expected


def test_a_weight_that_two_blocks_hold_is_in_the_rows_of_neither() -> None:
    model = Llama(ModelConfig(layers=2))
    model.head.weight = model.embedding.weight
    first, *_, last = blocks_of(model)
    assert (first, last) == (Block("embedding", (), ("weight",)), Block("head", (), ("weight",)))


def test_a_weight_that_the_model_itself_holds_as_well_is_shared() -> None:
    model = nn.Module()
    model.layer = nn.Linear(2, 2)
    model.weight = model.layer.weight
    assert blocks_of(model) == (Block("layer", ("bias",), ("weight",)),)


def test_every_weight_is_in_one_block_at_most() -> None:
    for model in (Gpt(), Llama(ModelConfig(layers=3))):
        rows = [model.get_submodule(b.name).get_parameter(p) for b in blocks_of(model) for p in b.parameters]
        assert {id(p) for p in rows} == {id(p) for p in model.parameters()}
        assert len(rows) == len(list(model.parameters()))


def test_a_module_with_two_names_is_one_block() -> None:
    layer = Layer()
    assert names(nn.ModuleList([layer, layer, Layer()])) == ["0", "2"]


def test_what_has_no_forward_is_never_a_block() -> None:
    """A namespace is divided; lists and dicts of parameters belong to whoever calls with them."""
    root = nn.Module()
    root.encoder = nn.Module()
    root.encoder.embedding = nn.Embedding(5, 4)
    root.prompts = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    root.scales = nn.ParameterDict({"one": nn.Parameter(torch.zeros(2))})
    root.patched = nn.Module()
    root.patched.inner = nn.Linear(4, 4)
    root.patched.forward = lambda x: root.patched.inner(x)
    assert names(root) == ["encoder.embedding", "patched"]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_part_is_a_block_like_any_other() -> None:
    assert names(nn.ModuleList([torch.jit.script(nn.Linear(2, 2)), nn.Linear(2, 2)])) == ["0", "1"]
