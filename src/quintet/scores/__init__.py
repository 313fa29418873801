"""Pure functions from Codes to scores. Here those of embeddings: the dot product of unit vectors is their cosine."""

from __future__ import annotations

from torch import Tensor

from quintet.codes import Codes


def dot_scores(image_codes: Codes, text_codes: Codes) -> Tensor:
    """(n_images, n_texts)."""
    return embedding_of(image_codes) @ embedding_of(text_codes).T


def dot_score_pairs(image_codes: Codes, text_codes: Codes) -> Tensor:
    """(n,): row i against row i."""
    return (embedding_of(image_codes) * embedding_of(text_codes)).sum(dim=1)


def embedding_of(codes: Codes) -> Tensor:
    if codes.embedding is None:
        raise ValueError("these Codes hold no embedding; they were made by a matcher that scores fragments")
    return codes.embedding
