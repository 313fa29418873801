"""What a matcher and a loss are, and what some of them can do besides: every ability has a name here.

A caller asks for an ability by its name, and never for a class or an attribute:

>>> from quintet.models import create_model
>>> matcher = create_model("scan", image_dim=8, vocabulary_size=10, embed_dim=4, word_dim=4)
>>> isinstance(matcher, Matcher), isinstance(matcher, ShowsAttention), isinstance(matcher, HasFrozenText)
(True, True, False)
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, _ProtocolMeta, runtime_checkable

import torch
from torch import Tensor, nn

from quintet.backbones.preprocess import Preprocess
from quintet.codes import Codes
from quintet.data.batches import ImageBatch, TextBatch

if TYPE_CHECKING:
    from quintet.losses.step import Progress, Step, Term
    from quintet.scores.cross_attention import AttentionMap


class AskedFor(_ProtocolMeta):
    """`isinstance` asks an object for the attributes on every Python. From 3.12 on it would look at the class alone, so
    that a property that raises AttributeError counts, and a parameter or part of a module does not.
    """

    def __instancecheck__(self, instance: Any) -> bool:
        if sys.version_info < (3, 12) or not self.__dict__.get("_is_protocol"):
            return super().__instancecheck__(instance)
        return all(hasattr(instance, name) for name in self.__dict__["__protocol_attrs__"])


@runtime_checkable
class Matcher(Protocol, metaclass=AskedFor):
    """An `nn.Module` that encodes images and texts, then scores pairs of codes.

    Losses, mining, evaluation, ensembles, search and benchmarks are written against this and nothing else.
    """

    @property
    def image_input(self) -> Literal["fragments", "pixels"]:
        """What `encode_images` reads from its batch. A matcher of pixels also is a `ReadsPixels`."""
        ...

    def encode_images(self, images: ImageBatch) -> Codes:
        """n images -> n rows of Codes."""
        ...

    def encode_texts(self, texts: TextBatch) -> Codes:
        """n texts -> n rows of Codes."""
        ...

    def score(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n_images, n_texts): every image against every text."""
        ...

    def score_pairs(self, image_codes: Codes, text_codes: Codes) -> Tensor:
        """(n,): row i against row i."""
        ...

    # What callers use of `nn.Module`.
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def to(self, device: torch.device | str) -> Self: ...
    def eval(self) -> Self: ...


# Optional abilities of matchers.


@runtime_checkable
class ReadsPixels(Protocol, metaclass=AskedFor):
    """Has an image tower of its own (`image_input` is "pixels")."""

    @property
    def preprocess(self) -> Preprocess:
        """From an image to the tower's input."""
        ...


class TextEncoder(Protocol):
    """Texts to features of their words."""

    dim: int
    name: str

    def __call__(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(n, L) ids, (n,) lengths -> (n, L, dim)."""
        ...


@runtime_checkable
class HasFrozenText(Protocol, metaclass=AskedFor):
    """May have a frozen text encoder, whose word features training can compute once and read from a file."""

    def frozen_text_encoder(self) -> TextEncoder | None:
        """None: the encoder is trained, or its dropout is on."""
        ...


@runtime_checkable
class ShowsAttention(Protocol, metaclass=AskedFor):
    """Can say which regions each word attends to."""

    def attention(self, image_code: Codes, text_code: Codes) -> AttentionMap:
        """Codes of one image and of one text."""
        ...


@runtime_checkable
class ShowsJointAttention(Protocol, metaclass=AskedFor):
    """Lets regions and words attend to all of both, and can say how much."""

    def joint_attention(self, image_code: Codes, text_code: Codes) -> Tensor:
        """Codes of one image and of one text -> (k + m, k + m), rows sum to one; regions come before words."""
        ...


@runtime_checkable
class UsesPositionNoise(Protocol, metaclass=AskedFor):
    """May place texts at random positions in training; its batches then carry `TextBatch.position_noise`."""

    @property
    def uses_position_noise(self) -> bool: ...


@runtime_checkable
class HasImageFeatures(Protocol, metaclass=AskedFor):
    """Pools the output of an image tower before its own layers; pseudo-categories are clusters of that."""

    def image_features(self, images: ImageBatch) -> Tensor:
        """n images -> (n, channels)."""
        ...


@runtime_checkable
class HasEmbedding(Protocol, metaclass=AskedFor):
    """Gives every item one vector. Losses with an `embed_dim` argument are given its size."""

    @property
    def embed_dim(self) -> int: ...


@runtime_checkable
class KeepsRegions(Protocol, metaclass=AskedFor):
    """Keeps fragments in the Codes of images in training. Losses with a `region_dim` argument are given their size."""

    @property
    def region_dim(self) -> int: ...


@runtime_checkable
class HasLogitScale(Protocol, metaclass=AskedFor):
    """Has learned how to turn scores into logits, which contrastive losses and probabilities are made of."""

    @property
    def logit_scale(self) -> Tensor:
        """What scores are multiplied with; positive."""
        ...

    @property
    def logit_bias(self) -> Tensor | float:
        """What is added to that."""
        ...


# Losses.


class Objective(Protocol):
    """An `nn.Module` that computes the named terms of a loss from a training step."""

    def __call__(self, step: Step) -> dict[str, Term]: ...


# Optional abilities of losses.


P_co = TypeVar("P_co", bound=Hashable, covariant=True)


@runtime_checkable
class Phased(Protocol[P_co], metaclass=AskedFor):
    """Declares how its computation changes over time. Only such a loss may be replayed from a CUDA graph.

    While `phase` gives the same value, `forward` computes the same function of batch and weights. `forward` asks for
    the phase with `step.phase_of(self)` and never reads `step.progress`. A loss that never changes returns None.
    """

    def phase(self, progress: Progress) -> P_co: ...


@runtime_checkable
class UsesTextPool(Protocol, metaclass=AskedFor):
    """Compares images with random training texts beside the batch (`PairBatch.pool`)."""

    pool_size: int  # how many texts; 0: none


@runtime_checkable
class UsesOfflineNegatives(Protocol, metaclass=AskedFor):
    """Compares a pair with hard negatives that were mined before the stage (`PairBatch.offline`)."""

    uses_offline: bool


@runtime_checkable
class UsesTeacher(Protocol, metaclass=AskedFor):
    """Learns from another run, which encodes the training split before the stage starts."""

    teacher: str  # a run folder, a shipped name, or hf:NAME

    def learn_from(self, teacher: Matcher, images: Codes, texts: Codes) -> None:
        """The teacher's matcher, and its codes of all images and texts of the training split."""
        ...


@runtime_checkable
class UsesCategories(Protocol, metaclass=AskedFor):
    """May classify pseudo-categories, which the trainer finds before the stage starts."""

    categories: int | None  # how many; None: none are needed

    @property
    def assigned(self) -> bool:
        """Whether every training group has its category."""
        ...

    def assign(self, categories: Tensor) -> None:
        """(groups,): the category of every training group."""
        ...


def preprocess_of(matcher: Matcher) -> Preprocess:
    """How images become the input of a matcher that reads pixels."""
    if matcher.image_input != "pixels" or not isinstance(matcher, ReadsPixels):
        raise TypeError(f"{type(matcher).__name__} reads features, not pixels, so it has no preprocess")
    return matcher.preprocess


def module_of(part: Matcher | Objective | TextEncoder) -> nn.Module:
    """The matcher, loss or encoder as the `nn.Module` it must be."""
    if not isinstance(part, nn.Module):
        raise TypeError(f"{type(part).__name__} must be an nn.Module")
    return part


@contextmanager
def evaluation_mode(matcher: Matcher, kinds: tuple[type[nn.Module], ...] = (nn.Module,)) -> Iterator[None]:
    """Evaluation mode, then every module back in the mode it was in (parts kept frozen stay frozen).

    `kinds`: only modules of these classes.
    """
    modules = matcher.modules() if isinstance(matcher, nn.Module) else ()
    modes = [(module, module.training) for module in modules if isinstance(module, kinds)]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
