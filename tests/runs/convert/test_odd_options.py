"""Checkpoints with unusual options of the authors' programs, against plain twins, pair by pair in float64."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quintet
from quintet.errors import QuintetError
from quintet.runs.convert import ConversionError, convert, read_checkpoint, translate

IMAGE, WORDS, WORD = 7, 20, 5
IDS = [[1, 5, 6, 2], [1, 2], [1, 8, 9, 7, 10, 13, 2]]
State = dict[str, Tensor]


def unit(x: Tensor, dim: int = -1, eps: float = 0.0) -> Tensor:
    return x / (x.square().sum(dim, keepdim=True).sqrt() + eps)


def random_state(module: nn.Module, seed: int) -> State:
    """Random weights; variances and gains are positive."""
    torch.manual_seed(seed)
    state = {}
    for name, tensor in module.state_dict().items():
        wide = torch.randn_like(tensor) * 0.4 if tensor.is_floating_point() else tensor
        state[name] = wide.abs() + 0.5 if "running_var" in name else wide
    return state


def run_of(kind: str, folder: Path, parts: list[State], given: dict[str, Any] | None = None, **options: Any) -> Any:
    torch.save({"epoch": 3, "model": parts, "opt": argparse.Namespace(**options)}, folder / "best")
    return convert(kind, folder / "best", folder / "run", options=given).matcher


def scores(matcher: Any, regions: Tensor, mask: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        images = matcher.encode_images(quintet.ImageBatch(fragments=regions, mask=mask))
        return matcher.score(images, matcher.encode_texts(quintet.TextBatch.from_ids(IDS)))


def gru_words(state: State, ids: list[int], dim: int, layers: int, both: bool) -> Tensor:
    """(n, d): the mean of the directions at every word."""
    gru = nn.GRU(WORD, dim, layers, bidirectional=both).double()
    gru.load_state_dict({name[4:]: tensor.double() for name, tensor in state.items() if name.startswith("rnn.")})
    states = gru(state["embed.weight"].double()[ids])[0].detach()  # (n, d or 2 d)
    return (states[:, :dim] + states[:, dim:]) / 2 if both else states


class Texts(nn.Module):
    def __init__(self, dim: int, layers: int, both: bool) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WORD), nn.GRU(WORD, dim, layers, bidirectional=both)


class Projection(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(IMAGE, dim)


def pair_cosines(queries: Tensor, context: Tensor, norm: str, temperature: float, focal: str | None = None) -> Tensor:
    """(q,): as SCAN's and BFAN's programs attend, one pair at a time."""
    products = context @ queries.T  # (c, q)
    if norm.startswith("clipped"):
        products = torch.where(products > 0, products, 0.1 * products)
    if norm.endswith("l2norm"):
        products = unit(products, 1, 1e-8)
    elif norm.endswith("l1norm"):
        products = products / (products.abs().sum(1, keepdim=True) + 1e-8)
    elif norm == "softmax":
        products = products.softmax(1)
    found = []
    for q in range(len(queries)):
        x = (temperature * products[:, q]).softmax(0)
        if focal is not None:
            weigh = torch.ones_like(x) if focal == "equal" else x.sqrt()
            kept = torch.stack([((xi - x) * weigh).sum() > 0 for xi in x])
            x = x * kept / (x * kept).sum()
        attended = (x[:, None] * context).sum(0)
        clamped = (queries[q].norm() * attended.norm()).clamp(min=1e-8)
        found.append((queries[q] @ attended) / clamped)
    return torch.stack(found)


AGGREGATE = {
    "LogSumExp": lambda s, lse: (lse * s).exp().sum().log() / lse,
    "Mean": lambda s, lse: s.mean(),
    "Max": lambda s, lse: s.max(),
    "Sum": lambda s, lse: s.sum(),
}
NORMS = ("clipped_l2norm", "l2norm", "softmax", "clipped", "no_norm", "l1norm", "clipped_l1norm")
SCANS = [
    *itertools.product(NORMS, ("t2i", "i2t"), ("LogSumExp",), (False,), (False,)),
    *itertools.product(("l2norm",), ("t2i", "i2t"), tuple(AGGREGATE), (True,), (False,)),
    *itertools.product(("no_norm",), ("t2i", "i2t"), ("Mean", "Sum"), (False, True), (True,)),
]


@pytest.mark.parametrize(("norm", "direction", "aggregation", "no_imgnorm", "no_txtnorm"), SCANS)
def test_scan(tmp_path: Path, norm: str, direction: str, aggregation: str, no_imgnorm: bool, no_txtnorm: bool) -> None:
    dim, layers, both = (10, 2, True) if no_imgnorm else (6, 1, False)
    image, text = random_state(Projection(dim), 1), random_state(Texts(dim, layers, both), 2)
    options = {"raw_feature_norm": norm, "cross_attn": direction, "agg_func": aggregation, "num_layers": layers}
    options |= {"lambda_softmax": 4.5, "lambda_lse": 3.0, "no_imgnorm": no_imgnorm, "no_txtnorm": no_txtnorm}
    regions = torch.randn(2, 4, IMAGE)
    found = scores(run_of("scan", tmp_path, [image, text], **options, bi_gru=both), regions)
    for i, t in itertools.product(range(2), range(3)):
        v = regions[i].double() @ image["fc.weight"].double().T + image["fc.bias"].double()
        w = gru_words(text, IDS[t], dim, layers, both)
        v, w = v if no_imgnorm else unit(v, eps=1e-8), w if no_txtnorm else unit(w, eps=1e-8)
        s = pair_cosines(*((w, v) if direction == "t2i" else (v, w)), norm, 4.5)
        assert found[i, t].item() == pytest.approx(AGGREGATE[aggregation](s, 3.0).item(), abs=2e-5)


@pytest.mark.parametrize("focal", ["equal", "prob"])
@pytest.mark.parametrize(("no_imgnorm", "no_txtnorm", "layers"), [(False, False, 2), (True, False, 1), (True, True, 3)])
def test_bfan(tmp_path: Path, focal: str, no_imgnorm: bool, no_txtnorm: bool, layers: int) -> None:
    dim = 9
    image, text = random_state(Projection(dim), 1), random_state(Texts(dim, layers, both=True), 2)
    options = {"focal_type": focal, "lambda_softmax": 7.0, "no_imgnorm": no_imgnorm, "no_txtnorm": no_txtnorm}
    regions = torch.randn(2, 4, IMAGE)
    found = scores(run_of("bfan", tmp_path, [image, text], **options), regions)
    for i, t in itertools.product(range(2), range(3)):
        v = regions[i].double() @ image["fc.weight"].double().T + image["fc.bias"].double()
        w = gru_words(text, IDS[t], dim, layers, both=True)
        v, w = v if no_imgnorm else unit(v, eps=1e-8), w if no_txtnorm else unit(w, eps=1e-8)
        expected = sum(pair_cosines(q, c, "clipped_l2norm", 7.0, focal).mean() for q, c in ((w, v), (v, w)))
        assert found[i, t].item() == pytest.approx(float(expected), abs=2e-5)


class Relation(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.g, self.theta, self.phi = (nn.Conv1d(dim, dim, 1) for _ in range(3))
        self.W = nn.Sequential(nn.Conv1d(dim, dim, 1), nn.BatchNorm1d(dim))

    def forward(self, v: Tensor) -> Tensor:
        """One image (1, d, n)."""
        affinity = self.theta(v)[0].T @ self.phi(v)[0] / v.shape[2]  # (n, n)
        return self.W((affinity @ self.g(v)[0].T).T[None]) + v


class RegionsToVector(nn.Module):
    def __init__(self, dim: int, f30k: bool) -> None:
        super().__init__()
        self.fc, self.img_rnn = nn.Linear(IMAGE, dim), nn.GRU(dim, dim, batch_first=True)
        for block in range(1, 5):
            self.add_module(f"Rs_GCN_{block}", Relation(dim))
        if f30k:
            self.bn = nn.BatchNorm1d(dim)

    def forward(self, regions: Tensor, no_imgnorm: bool) -> Tensor:
        """One image (n, IMAGE); lengths are over the regions, as in the released code."""
        v = self.fc(regions)
        v = v if hasattr(self, "bn") else unit(v, 0)
        v = v.T[None]
        for block in range(1, 5):
            v = self.get_submodule(f"Rs_GCN_{block}")(v)
        last = self.img_rnn(unit(v[0].T, 0)[None])[1][0]  # (1, d)
        last = self.bn(last) if hasattr(self, "bn") else last
        return last[0] if no_imgnorm else unit(last[0])


@pytest.mark.parametrize("data_name", ["f30k_precomp", "coco_precomp", "f8k_precomp"])
@pytest.mark.parametrize(("no_imgnorm", "use_abs", "layers"), [(False, False, 2), (True, False, 1), (False, True, 1)])
def test_vsrn(tmp_path: Path, data_name: str, no_imgnorm: bool, use_abs: bool, layers: int) -> None:
    dim = 6
    twin = RegionsToVector(dim, f30k=data_name == "f30k_precomp").eval()
    twin.load_state_dict(random_state(twin, 1))
    text = random_state(Texts(dim, layers, both=False), 2)
    options = {"data_name": data_name, "no_imgnorm": no_imgnorm, "use_abs": use_abs, "num_layers": layers}
    regions = torch.randn(3, 4, IMAGE)
    found = scores(run_of("vsrn", tmp_path, [twin.state_dict(), text], **options), regions)
    twin.double()
    for i, t in itertools.product(range(3), range(3)):
        with torch.no_grad():
            v = twin(regions[i].double(), no_imgnorm)
        w = unit(gru_words(text, IDS[t], dim, layers, both=False)[-1])
        v, w = (v.abs(), w.abs()) if use_abs else (v, w)
        assert found[i, t].item() == pytest.approx((v @ w).item(), abs=2e-5)


def test_the_first_version_of_vsrn_normalised_its_input_everywhere(tmp_path: Path) -> None:
    """It had no batch normalisation, and did not look at the name of the data."""
    twin, text = RegionsToVector(6, f30k=False), Texts(6, 1, both=False)
    parts = [random_state(twin, 1), random_state(text, 2)]
    assert run_of("vsrn", tmp_path, parts, data_name="f30k_precomp").image_encoder.normalise_input
    parts[0] = random_state(RegionsToVector(6, f30k=True), 1)
    torch.save({"model": parts, "opt": argparse.Namespace(data_name="coco_precomp")}, tmp_path / "best")
    with pytest.raises(ConversionError, match="data_name='coco_precomp'"):
        convert("vsrn", tmp_path / "best", tmp_path / "other")


@pytest.mark.parametrize(("no_imgnorm", "use_abs", "layers"), [(True, False, 2), (False, True, 1)])
def test_vsepp(tmp_path: Path, no_imgnorm: bool, use_abs: bool, layers: int) -> None:
    dim = 6
    image, text = random_state(Projection(dim), 1), random_state(Texts(dim, layers, both=False), 2)
    regions = torch.randn(3, 1, IMAGE)
    found = scores(run_of("vsepp", tmp_path, [image, text], no_imgnorm=no_imgnorm, use_abs=use_abs), regions)
    for i, t in itertools.product(range(3), range(3)):
        v = regions[i, 0].double() @ image["fc.weight"].double().T + image["fc.bias"].double()
        v, w = v if no_imgnorm else unit(v), unit(gru_words(text, IDS[t], dim, layers, both=False)[-1])
        v, w = (v.abs(), w.abs()) if use_abs else (v, w)
        assert found[i, t].item() == pytest.approx((v @ w).item(), abs=2e-5)


class Fragments(nn.Module):
    """HREM's pooling: 2 largest values and the mean after one Transformer layer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, heads, dim, 0.1)
        self.aggr = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def pooled(self, rows: Tensor, weight: float, length: bool) -> Tensor:
        """(n, d) -> (d,)."""
        largest = rows.sort(0, descending=True).values[:2].mean(0)
        vector = weight * largest + (1 - weight) * self.aggr(rows[:, None])[:, 0].mean(0)
        return vector if length else unit(vector, eps=1e-8)


class HremImages(Fragments):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.fc = nn.Module()
        self.fc.fc, self.fc.mlp = nn.Linear(IMAGE, dim), nn.Module()
        self.fc.mlp.layers = nn.ModuleList([nn.Linear(IMAGE, dim // 2), nn.Linear(dim // 2, dim)])
        self.fc.mlp.bns = nn.ModuleList([nn.BatchNorm1d(dim // 2), nn.BatchNorm1d(dim)])  # the second is not applied

    def forward(self, regions: Tensor, weight: float, length: bool) -> Tensor:
        hidden = self.fc.mlp.bns[0](self.fc.mlp.layers[0](regions)).relu()
        return self.pooled(self.fc.fc(regions) + self.fc.mlp.layers[1](hidden), weight, length)


class HremTexts(Fragments):
    def __init__(self, dim: int, heads: int, bert: dict[str, int]) -> None:
        super().__init__(dim, heads)
        transformers = pytest.importorskip("transformers")
        self.bert = transformers.BertModel(transformers.BertConfig(vocab_size=WORDS, **bert))
        self.linear = nn.Linear(bert["hidden_size"], dim)

    def forward(self, ids: list[int], weight: float, length: bool) -> Tensor:
        return self.pooled(self.linear(self.bert(torch.tensor([ids])).last_hidden_state[0]), weight, length)


SMALL = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 11}


@pytest.mark.parametrize(
    ("dim", "heads", "weight", "no_imgnorm", "no_txtnorm"),
    [(12, 3, 0.8, False, False), (16, 16, 0.3, True, False), (20, 1, 1.0, False, True), (10, 5, 0.0, True, True)],
)
def test_hrem(tmp_path: Path, dim: int, heads: int, weight: float, no_imgnorm: bool, no_txtnorm: bool) -> None:
    images, texts = HremImages(dim, heads).eval(), HremTexts(dim, heads, SMALL).eval()
    for seed, twin in enumerate((images, texts)):
        twin.load_state_dict(random_state(twin, seed))
    options = {"nhead": heads, "residual_weight": weight, "dropout": 0.3, "num_layers_enc": 2, "topk": 4}
    options |= {"no_imgnorm": no_imgnorm, "no_txtnorm": no_txtnorm, "embed_size": dim}
    parts = [images.state_dict(), texts.state_dict()]
    counts = (5, 3)
    regions, mask = torch.randn(2, 5, IMAGE), torch.arange(5) < torch.tensor(counts)[:, None]
    matcher = run_of("hrem", tmp_path, parts, {"bert_heads": 4}, **options)
    assert matcher.image_encoder.aggregation.layer.dropout.p == 0.3, "for those who train on"
    found = scores(matcher, regions, mask)
    for i, t in itertools.product(range(2), range(3)):
        with torch.no_grad():
            v = images.double()(regions[i, : counts[i]].double(), weight, no_imgnorm)
            w = texts.double()(IDS[t], weight, no_txtnorm)
        assert found[i, t].item() == pytest.approx((v @ w).item(), rel=1e-4, abs=2e-5)


def test_heads_that_do_not_divide_are_told(tmp_path: Path) -> None:
    parts = [HremImages(12, 3).state_dict(), HremTexts(12, 3, SMALL).state_dict()]
    for options, told in (({"nhead": 5}, "5 attention heads"), ({"nhead": 3, "bert_heads": 3}, "bert_heads=3")):
        with pytest.raises(QuintetError, match=told):
            run_of("hrem", tmp_path, parts, options)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("new_names", [False, True])
@pytest.mark.parametrize("kind", ["scan", "bfan"])
def test_a_projection_with_weight_norm(tmp_path: Path, kind: str, new_names: bool) -> None:
    """`precomp_enc_type=weight_norm` keeps a length and a direction of the whole matrix."""
    plain, text = random_state(Projection(6), 1), random_state(Texts(6, 1, both=True), 2)
    names = [f"fc.parametrizations.weight.original{n}" for n in (1, 0)] if new_names else ["fc.weight_v", "fc.weight_g"]
    v, g = torch.randn(6, IMAGE), torch.tensor(2.5)
    kept = {names[0]: v, names[1]: g, "fc.bias": plain["fc.bias"]}
    regions = torch.randn(2, 4, IMAGE)
    (tmp_path / "kept").mkdir()
    found = scores(run_of(kind, tmp_path / "kept", [kept, text], precomp_enc_type="weight_norm"), regions)
    plain["fc.weight"] = 2.5 * v / v.square().sum().sqrt()
    torch.testing.assert_close(found, scores(run_of(kind, tmp_path, [plain, text]), regions))


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("scan", {"measure": "order"}, "order embeddings"),
        ("scan", {"use_abs": True}, "no absolute values"),
        ("scan", {"precomp_enc_type": "backbone"}, "without an image network"),
        ("scan", {"no_imgnorm": "maybe"}, "normalise_images"),
        ("scan", {"raw_feature_norm": "l3norm"}, "norm cannot be"),
        ("scan", {"cross_attn": "i2i"}, "direction cannot be"),
        ("bfan", {"focal_type": "some"}, "focal cannot be"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_reason(
    tmp_path: Path, kind: str, options: dict[str, Any], told: str
) -> None:
    parts = [random_state(Projection(6), 1), random_state(Texts(6, 1, both=True), 2)]
    with pytest.raises(ConversionError, match=told):
        run_of(kind, tmp_path, parts, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "assumed"),
    [
        (
            "scan",
            {
                "cross_attn": "t2i",
                "agg_func": "LogSumExp",
                "lambda_lse": 6.0,
                "lambda_softmax": 9.0,
                "raw_feature_norm": "clipped_l2norm",
                "no_imgnorm": False,
                "no_txtnorm": False,
            },
        ),
        ("vsrn", {"no_imgnorm": False, "use_abs": False, "data_name": "coco_precomp"}),
        (
            "hrem",
            {
                "residual_weight": 0.8,
                "nhead": 16,
                "dropout": 0.1,
                "no_imgnorm": False,
                "no_txtnorm": False,
                "bert_heads": 1,
            },
        ),
    ],
)
def test_a_file_without_options_is_of_the_programs_defaults(tmp_path: Path, kind: str, assumed: dict[str, Any]) -> None:
    parts: dict[str, list[nn.Module]] = {
        "scan": [Projection(6), Texts(6, 1, both=True)],
        "vsrn": [RegionsToVector(6, f30k=False), Texts(6, 1, both=False)],
        "hrem": [HremImages(16, 16), HremTexts(16, 16, SMALL)],
    }
    torch.save({"model": [part.state_dict() for part in parts[kind]]}, tmp_path / "best")
    assert translate(kind, read_checkpoint(tmp_path / "best")).assumed == assumed


def test_what_is_assumed_is_told(tmp_path: Path) -> None:
    parts = [random_state(Projection(6), 1), random_state(Texts(6, 1, both=True), 2)]
    torch.save({"model": parts, "opt": argparse.Namespace(no_imgnorm=True)}, tmp_path / "best")
    made = translate("bfan", read_checkpoint(tmp_path / "best"))
    assert made.assumed == {"focal_type": "equal", "lambda_softmax": 20.0, "no_txtnorm": False}
    assert (made.arguments["normalise_images"], made.arguments["normalise_texts"]) == (False, True)
