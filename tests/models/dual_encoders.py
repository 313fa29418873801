"""Small dual encoders of transformers with their processors, saved to a folder as their owners would."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
import transformers as t

LETTERS = string.ascii_lowercase + string.digits + ".,!'-"
KINDS = ("clip", "clip-legacy", "siglip", "siglip2", "altclip", "chinese_clip", "metaclip_2")


def clip_tokenizer(limit: int) -> Any:
    """Letters and a few pieces; <|endoftext|> is the highest id and fills up, as in OpenAI's."""
    vocab = {letter: id_ for id_, letter in enumerate([*LETTERS, *(f"{letter}</w>" for letter in LETTERS)])}
    merges = [("d", "o"), ("do", "g</w>"), ("c", "a"), ("ca", "t</w>")]
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    vocab |= {"<|startoftext|>": len(vocab), "<|endoftext|>": len(vocab) + 1}
    return t.CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=limit)


def bert_tokenizer(limit: int) -> Any:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "dog"]
    return t.BertTokenizer(vocab={piece: id_ for id_, piece in enumerate(pieces)}, model_max_length=limit)


def roberta_tokenizer(limit: int) -> Any:
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(letter, -3.0) for letter in LETTERS] + [("▁dog", -1.0), ("<mask>", 0.0)]
    return t.XLMRobertaTokenizer(vocab=pieces, model_max_length=limit)


def gemma_tokenizer(limit: int, mask: bool = False) -> Any:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = [*special, "▁", *LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))]
    names = ["input_ids", *(["attention_mask"] if mask else [])]
    return t.Siglip2Tokenizer(
        vocab={piece: id_ for id_, piece in enumerate(pieces)},
        merges=[],
        model_max_length=limit,
        model_input_names=names,
        padding_side="right",
    )


def save_dual_encoder(
    folder: Path, kind: str = "clip", *, image: int = 32, patch: int = 8, dim: int = 24, limit: int = 16, seed: int = 0
) -> Any:
    """Save a model of this kind with its processor; returns the model."""
    torch.manual_seed(seed)
    roberta = kind in ("altclip", "metaclip_2")
    make = {"chinese_clip": bert_tokenizer, "siglip": gemma_tokenizer, "siglip2": gemma_tokenizer}
    tokenizer = (roberta_tokenizer if roberta else make.get(kind, clip_tokenizer))(limit)
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    text = small | {"hidden_size": 16, "vocab_size": len(tokenizer), "max_position_embeddings": limit}
    text |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    text["bos_token_id"] = tokenizer.bos_token_id
    vision = small | {"hidden_size": 12, "image_size": image, "patch_size": patch}
    if kind == "clip-legacy":
        text["eos_token_id"] = 2
    if kind == "altclip":
        text |= {"max_position_embeddings": limit + 2, "project_dim": dim}
    if kind.startswith("siglip"):
        text |= {"hidden_size": dim, "projection_size": dim}
        vision["hidden_size"] = dim
    if kind == "siglip2":
        vision = {key: value for key, value in vision.items() if key != "image_size"} | {"num_patches": 16}
    if kind == "chinese_clip":
        text = {key: value for key, value in text.items() if key not in ("bos_token_id", "eos_token_id")}
    configs, models = {"clip": t.CLIPConfig, "clip-legacy": t.CLIPConfig}, {"clip-legacy": t.CLIPModel}
    for name, prefix in (("siglip", "Siglip"), ("siglip2", "Siglip2"), ("altclip", "AltCLIP"), ("clip", "CLIP")):
        configs[name], models[name] = getattr(t, f"{prefix}Config"), getattr(t, f"{prefix}Model")
    for name, prefix in (("chinese_clip", "ChineseCLIP"), ("metaclip_2", "MetaClip2")):
        configs[name], models[name] = getattr(t, f"{prefix}Config"), getattr(t, f"{prefix}Model")
    more = {} if kind.startswith("siglip") else {"projection_dim": dim}
    model = models[kind](configs[kind](text_config=text, vision_config=vision, **more)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor(kind, image, patch).save_pretrained(folder)
    return model


def image_processor(kind: str, image: int, patch: int) -> Any:
    if kind == "siglip2":
        return _pil("siglip2", "Siglip2")(patch_size=patch, max_num_patches=16)
    if kind == "siglip":
        return _pil("siglip", "Siglip")(size={"height": image, "width": image})
    size, crop = {"shortest_edge": image}, {"height": image, "width": image}
    return _pil("clip", "CLIP")(size=size, crop_size=crop)


def _pil(module: str, prefix: str) -> Any:
    """Before version 5 the class that needs no torchvision has the plain name."""
    found = getattr(t.models, module)
    return getattr(found, f"{prefix}ImageProcessorPil", None) or getattr(t, f"{prefix}ImageProcessor")


def reference_inputs(folder: Path, kind: str, images: list[Any], texts: list[str]) -> dict[str, Any]:
    """What the model's own processor and tokenizer make."""
    processor, tokenizer = t.AutoImageProcessor.from_pretrained(folder), t.AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if kind.startswith("siglip") else True
    return {
        **processor(images, return_tensors="pt"),
        **tokenizer(texts, padding=padding, truncation=True, return_tensors="pt"),
    }
