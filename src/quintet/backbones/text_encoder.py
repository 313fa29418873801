"""Texts to features of their words: any BERT-like encoder of Hugging Face, or a small one to train from scratch.

Both take token ids padded at the end and give (n, L, dim); outputs at padding are undefined.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from quintet.data.hub import hub_source
from quintet.errors import QuintetError, RecipeError, first_line


class HuggingFaceText(nn.Module):
    """The last layer of an encoder such as BERT, frozen unless `trainable`.

    `name` is a folder or a name on the hub. With `config` (what `text_encoder_config(name)` gave) and
    `pretrained=False` nothing is read from there: the encoder is made from the configuration, for weights that come
    from elsewhere. A frozen encoder runs in evaluation mode and without gradients; `dropout=True` leaves its dropout
    on while training, as SAEM's code does.
    """

    def __init__(
        self,
        name: str,
        *,
        config: dict[str, Any] | None = None,
        pretrained: bool = True,
        trainable: bool = False,
        dropout: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.dropout = dropout
        self.model = _load_model(name, config, pretrained)
        shape: Any = self.model.config
        self.dim = int(shape.hidden_size)
        self.vocabulary_size = int(shape.vocab_size)
        self.max_length: int | None = getattr(shape, "max_position_embeddings", None)
        self.model.requires_grad_(trainable)
        self.train(self.training)

    @property
    def frozen(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.model.parameters())

    @property
    def repeatable(self) -> bool:
        """Whether a text has the same features in every epoch, so that they can be kept."""
        return self.frozen and not self.dropout

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.repeatable:
            self.model.eval()
        return self

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) lengths -> (n, L, dim)."""
        if self.max_length is not None and tokens.shape[1] > self.max_length:
            raise QuintetError(
                f"a text has {tokens.shape[1]} tokens, the text encoder {self.name} takes {self.max_length}; "
                "cut texts with data.tokenizer.max_length"
            )
        if not len(tokens):
            return torch.zeros((*tokens.shape, self.dim), device=tokens.device)
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths.to(tokens.device)[:, None]  # (n, L)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.model(input_ids=tokens, attention_mask=real.long()).last_hidden_state


class SmallText(nn.Module):
    """A small Transformer encoder for texts that no pretrained encoder has seen (generated scenes, tests).

    Word embedding plus sinusoidal positions, then `layers` pre-norm layers of torch. Nothing limits the length.

    >>> encoder = SmallText(vocabulary_size=10, dim=8, heads=2)
    >>> encoder(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([3, 2])).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self, vocabulary_size: int, dim: int = 256, *, layers: int = 2, heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if dim % heads or dim % 2:
            raise ValueError(
                f"the width of the text encoder must be even and a multiple of its {heads} heads, got {dim}"
            )
        self.dim = dim
        self.vocabulary_size = vocabulary_size
        self.embed = nn.Embedding(vocabulary_size, dim)
        nn.init.normal_(self.embed.weight, std=dim**-0.5)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        for parameter in self.layers.parameters():  # copies of one layer would start alike
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) lengths -> (n, L, dim)."""
        position = torch.arange(tokens.shape[1], device=tokens.device)
        words = self.embed(tokens) * math.sqrt(self.dim)
        words = words + _sinusoids(position, self.dim).to(words.dtype)  # (n, L, d)
        if not len(tokens):
            return words
        return self.layers(words, src_key_padding_mask=position >= lengths.to(tokens.device)[:, None])


def _sinusoids(position: Tensor, dim: int) -> Tensor:
    """(L,) -> (L, dim)."""
    frequency = 10_000.0 ** (-torch.arange(0, dim, 2, device=position.device) / dim)  # (dim / 2,)
    angles = position[:, None] * frequency
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def text_encoder_config(name: str) -> dict[str, Any]:
    """The configuration of a Hugging Face encoder as JSON values: with the weights, all that makes it again."""
    transformers = _transformers(name)
    try:
        config = transformers.AutoConfig.from_pretrained(hub_source(name, ["config.json"]))
    except (OSError, ValueError) as error:
        raise _not_found(name, error) from None
    return config.to_dict()


def _load_model(name: str, config: dict[str, Any] | None, pretrained: bool) -> nn.Module:
    transformers = _transformers(name)
    try:
        # Code from a model's own repository is never run: trust_remote_code stays off.
        if pretrained:
            model = transformers.AutoModel.from_pretrained(hub_source(name))
        else:
            settings = text_encoder_config(name) if config is None else dict(config)
            kind = settings.pop("model_type", None)
            model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **settings))
    except (OSError, ValueError) as error:
        raise _not_found(name, error) from None
    if getattr(model, "main_input_name", "input_ids") != "input_ids" or not hasattr(model.config, "hidden_size"):
        raise QuintetError(f"{name} is not a text encoder; give a BERT-like one")
    if getattr(model.config, "is_encoder_decoder", False):
        raise QuintetError(f"{name} is an encoder with a decoder; give a BERT-like encoder alone")
    if hasattr(model, "pooler"):
        model.pooler = None  # of the text's first token; nothing here reads it, so nothing should store or train it
    return model.float()


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise QuintetError(
            f"the text encoder {name} needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})"
        ) from None
    return transformers


def _not_found(name: str, error: Exception) -> QuintetError:
    return QuintetError(
        f"the text encoder {name!r} is neither a folder with a model nor one the hub gives ({first_line(error)}); "
        "without a connection, give the path of its folder"
    )


PREFIX = "hf:"


def pretrained_text(matcher: str, text: str, others: str, vocabulary_size: int, **settings: Any) -> HuggingFaceText:
    """The encoder that `text` names, with `settings` as `HuggingFaceText` takes them; `others`: what else it may be."""
    if not text.startswith(PREFIX):
        raise RecipeError(f"matcher {matcher!r}: text is {others} or '{PREFIX}FOLDER_OR_HUB_NAME', not {text!r}")
    name = text.removeprefix(PREFIX)
    encoder = HuggingFaceText(name, **settings)
    if encoder.vocabulary_size < vocabulary_size:
        raise RecipeError(
            f"the tokenizer has {vocabulary_size} ids, but the text encoder {name} knows {encoder.vocabulary_size}; "
            f"use its own: data.tokenizer={{kind: wordpiece, source: {name}}}"
        )
    return encoder
