"""`PretrainedTokenizer`: the tokenizer that a pretrained model was trained with, from its own files."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quintet.data.pretrained import pretrained_folder
from quintet.data.vocabulary import TokenKinds
from quintet.errors import QuintetError, RunError
from quintet.files import check_shape

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

NO_LIMIT = 1_000_000  # transformers writes 1e30 where a tokenizer has no limit


@dataclass(frozen=True)
class _State:
    """What `PretrainedTokenizer.state` gives."""

    tokenizer: dict[str, Any]
    pad: int
    max_length: int | None
    unknown: int | None
    hidden: int | None
    truncation_side: str
    padding_side: str
    mask: bool


class PretrainedTokenizer:
    """Any fast tokenizer of transformers (BPE, word pieces, unigrams), with the special tokens that it adds itself.

    `max_length` counts special tokens. A longer text is cut, its special tokens stay, and `cut` counts such texts.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, state: _State) -> None:
        self._tokenizer, self._state = tokenizer, state
        self.pad = state.pad
        self.unknown = state.pad if state.unknown is None else state.unknown
        self.max_length = state.max_length
        self.padding_side = state.padding_side
        self.mask = state.mask  # whether the model is told which tokens are padding
        self.cut = 0  # texts so far that were longer than `max_length`
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if state.max_length is not None:
            tokenizer.enable_truncation(state.max_length, direction=state.truncation_side)

    @classmethod
    def load(cls, source: Path | str, max_length: int | None = None) -> PretrainedTokenizer:
        """From a folder or a name on the hub. `max_length` may be below the tokenizer's own."""
        name = str(source)
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise QuintetError(
                f"the tokenizer of {name} needs the `hf` extra: `pip install 'quintet-retrieval[hf]'` ({error})"
            ) from None
        folder = pretrained_folder(source)
        try:
            # Code from a model's own repository is never run: trust_remote_code stays off.
            found: Any = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
            backend = _backend(found, folder)
        except Exception as error:  # noqa: BLE001  # whatever a reader raises on damaged files or a missing package
            alone = (folder / "spiece.model").is_file() and not (folder / "tokenizer.json").is_file()
            hint = "; its pieces are in spiece.model alone: `pip install sentencepiece protobuf`" if alone else ""
            raise QuintetError(f"the tokenizer of {name} cannot be read: {str(error).strip()[:300]}{hint}") from None
        if backend is None:
            raise QuintetError(
                f"the tokenizer of {name} ({type(found).__name__}) has no tokenizer.json; make one where the package "
                "it needs is installed: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        limits = [limit for limit in (max_length, int(found.model_max_length)) if limit and limit < NO_LIMIT]
        state = _State(
            tokenizer=json.loads(backend.to_str()),
            pad=int(found.pad_token_id if found.pad_token_id is not None else found.eos_token_id or 0),
            max_length=min(limits, default=None),
            unknown=found.unk_token_id,
            hidden=found.mask_token_id,
            truncation_side=str(found.truncation_side),
            padding_side=str(found.padding_side),
            mask="attention_mask" in found.model_input_names,
        )
        return cls(backend, state)

    def __len__(self) -> int:
        return max(self._tokenizer.get_vocab().values()) + 1

    def ids(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text)
        self.cut += bool(encoding.overflowing)
        return encoding.ids or [self.pad]

    def tokens(self, text: str) -> list[str]:
        return self._tokenizer.encode(text).tokens

    def kinds(self) -> TokenKinds:
        """Where the last piece of a word has the mark (CLIP's `</w>`), every piece counts as a word."""
        special, continues = (np.zeros(len(self), dtype=bool) for _ in range(2))
        ends = self._tokenizer.encode("").ids  # one of which CLIP also takes for what it does not know
        for id_, token in self._tokenizer.get_added_tokens_decoder().items():
            special[id_] = token.special and (id_ != self._state.unknown or id_ in ends)
        pieces = self._tokenizer.get_vocab()
        begin = next((mark for mark in ("\u2581", "\u0120") if any(piece.startswith(mark) for piece in pieces)), None)
        for piece, id_ in pieces.items():
            apart = piece.startswith("##") if begin is None else not piece.startswith(begin)
            continues[id_] = apart and not special[id_]
        return TokenKinds(special, continues, self._state.hidden)

    def plain_words(self) -> list[str]:
        kinds, pieces = self.kinds(), sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        words = (piece.lstrip("\u2581\u0120") for piece, id_ in pieces if not kinds.special[id_] | kinds.continues[id_])
        return [word for each in words if (word := each.removesuffix("</w>")).isalpha() and len(word) > 2]

    def state(self) -> dict[str, Any]:
        """With the whole vocabulary inside, so that a run can be moved to another machine."""
        return {"kind": "pretrained"} | vars(self._state)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> PretrainedTokenizer:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise QuintetError("this tokenizer needs the package 'tokenizers': `pip install tokenizers`") from None
        try:
            saved = check_shape({key: state[key] for key in state if key != "kind"}, _State, "the saved tokenizer")
        except QuintetError as error:
            raise RunError(str(error)) from None
        return cls(Tokenizer.from_str(json.dumps(saved.tokenizer)), saved)


def _backend(found: Any, folder: Path) -> HuggingFaceTokenizer | None:
    """The fast tokenizer behind one of transformers. SigLIP's class has none, whatever files lie beside it."""
    backend: HuggingFaceTokenizer | None = getattr(found, "backend_tokenizer", None)
    if backend is not None:
        return backend
    from tokenizers import Tokenizer

    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    return _siglip_pieces(found) if type(found).__name__ == "SiglipTokenizer" else None


def _siglip_pieces(found: Any) -> HuggingFaceTokenizer:
    """The unigrams of a SentencePiece model, for texts in small letters without punctuation, as SigLIP was trained."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto.FromString(found.sp_model.serialized_model_proto())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id, byte_fallback=False))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if found.do_lower_case else []),
            normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    end = (str(found.eos_token), int(found.eos_token_id))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    names = dict.fromkeys((found.eos_token, found.unk_token, found.pad_token))
    tokenizer.add_special_tokens([AddedToken(str(name), normalized=False) for name in names])
    return tokenizer
