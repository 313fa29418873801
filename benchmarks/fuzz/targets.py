"""What is fuzzed: every parser of data from outside, in eleven targets.

A target is a list of parsers. The first byte of an input chooses one of them, and the rest is what it reads. Most
parsers read a file of the material (a run, a corpus, an index) that is replaced by the input, while its other files are
as they should be. Checksums are left out of the material, so that the parsers behind them are reached.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

import quintet
from benchmarks.torture import material
from benchmarks.torture.material import Material
from quintet.backbones.weights import read_weights
from quintet.cli.main import app
from quintet.cli.options import parse_size
from quintet.codes import Codes
from quintet.data.candidates import read_lists
from quintet.data.corpus import Corpus
from quintet.data.feature_store import FeatureStore, WordFeatures, write_word_features
from quintet.data.formats import get_format, parse_options
from quintet.data.formats import import_journal as journal_file
from quintet.data.formats.assembly import ImageFolder, Notes
from quintet.data.formats.parquet import parquet_images
from quintet.data.images import image_format, image_header, open_image, thumbnail
from quintet.data.negatives import NegativeLists
from quintet.data.photo_formats import load_decoders
from quintet.data.remote import expand_braces
from quintet.data.tokenizers import load_tokenizer
from quintet.data.vocabulary import WordVocabulary
from quintet.data.word_vectors import read_word_vectors
from quintet.data.wordpiece import WordPiece
from quintet.evaluation.eccv import coco_relevance
from quintet.evaluation.human_agreement import read_crowd_annotations, read_expert_annotations
from quintet.evaluation.leaderboard import read_entry
from quintet.evaluation.rankings import read_embeddings, read_run_file
from quintet.evaluation.relevance import read_relevance
from quintet.evaluation.result import _RANK_FIELDS, load_ranks
from quintet.features.job import Skipped, _journal_line, _journal_row
from quintet.locks import _content, folder_lock
from quintet.mining.journal import Journal
from quintet.runs.checkpoint import load_checkpoint, save_checkpoint, save_tensors
from quintet.runs.convert.original import read_checkpoint
from quintet.runs.run_folder import default_split, verify_run
from quintet.search.fields import image_facts, parse_fields, sidecar
from quintet.search.items import ItemDatabase
from quintet.search.safekeeping import verify_index
from quintet.search.searcher import Searcher
from quintet.search.stores import open_store
from quintet.search.stores.where import parse_where
from quintet.serve import decoder
from quintet.serve.app import create_app
from quintet.serve.settings import Settings
from quintet.serve.watcher import Searchers
from quintet.studies.study_file import load_study
from quintet.training.recipe import load_recipe, show_recipe

LARGEST_SEED = 2**16  # bytes: mutations of longer inputs find little


@dataclass(frozen=True)
class Parser:
    """`read` takes any bytes. What it may raise is a QuintetError."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]


Target = Callable[[Material, Path], list[Parser]]  # with a folder of its own


def at_file(path: Path, read: Callable[[], object], *seeds: bytes) -> Parser:
    """A parser of one file; afterwards the file is as it was."""
    before = path.read_bytes() if path.is_file() else None

    def put_and_read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read()
        finally:
            if before is not None:
                path.write_bytes(before)

    return Parser(put_and_read, [*([] if before is None else [before]), *seeds])


def files_of(folder: Path, patterns: Sequence[str], read: Callable[[], object]) -> list[Parser]:
    return [at_file(path, read) for pattern in patterns for path in sorted(folder.glob(pattern))]


def copy(source: Path, folder: Path) -> Path:
    """Without checksums: of files in JSON, and of the rows in an index."""
    target = Path(shutil.copytree(source, folder / source.name))
    (target / "checksums.json").unlink(missing_ok=True)
    for path in target.rglob("*.json"):
        value = json.loads(path.read_text())
        if isinstance(value, dict) and value.pop("checksums", None):
            path.write_text(json.dumps(value))
    return target


def saved(value: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **how)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def checkpoints(made: Material, folder: Path) -> list[Parser]:
    """Checkpoints of original implementations and weights of towers: `quintet convert`, `--weights FILE`."""
    whole = material.checkpoint()
    plain = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    seeds = [saved(whole), saved(whole, _use_new_zipfile_serialization=False)]
    seeds += [saved({"model": [plain, plain], "opt": argparse.Namespace(margin=0.2)}), saved([1, "a", {"b": None}])]
    out = folder / "run"

    def convert() -> None:
        shutil.rmtree(out, ignore_errors=True)
        quintet.convert("bfan", folder / "best.tar", out)

    tensors = folder / "tensors.safetensors"
    save_tensors(tensors, plain, {"a": 1})
    return [
        at_file(folder / "model.pth.tar", lambda: read_checkpoint(folder / "model.pth.tar"), *seeds),
        at_file(folder / "best.tar", convert, *seeds[:2]),
        at_file(folder / "a.pth", lambda: read_weights(folder / "a.pth"), saved(plain), saved({"state_dict": plain})),
        at_file(tensors, lambda: read_weights(tensors)),
    ]


def runs(made: Material, folder: Path) -> list[Parser]:
    """Run folders: JSON, weights, checkpoints of stages, codes, ranks."""
    run = copy(made.run, folder)
    codes = folder / "codes.safetensors"
    Codes(embedding=torch.ones(2, 3), fragments=torch.ones(2, 4, 3), mask=torch.ones(2, 4, dtype=torch.bool)).save(
        codes
    )
    ranks, checkpoint = folder / "ranks.npz", folder / "checkpoint.safetensors"
    np.savez(ranks, **{f"fold0_{name}": np.arange(4) for name in _RANK_FIELDS})
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(checkpoint, module, optimizer, {"epoch": 1})
    return [
        *files_of(run, ["run.json", "model.json", "tokenizer.json", "images.json"], lambda: quintet.load(run)),
        *files_of(run, ["weights.safetensors"], lambda: quintet.load(run, device="cpu")),
        at_file(checkpoint, lambda: load_checkpoint(checkpoint, module, optimizer)),
        at_file(run / "recipe.yaml", lambda: default_split([run], ["test"])),
        at_file(run / "checksums.json", lambda: verify_run(run), (made.run / "checksums.json").read_bytes()),
        at_file(codes, lambda: Codes.load(codes)),
        at_file(ranks, lambda: load_ranks(ranks)),
    ]


def recipes(made: Material, folder: Path) -> list[Parser]:
    """Recipes and studies in YAML, and `key=value` overrides of them."""
    source = made.recipe.with_suffix(".yaml").read_bytes()
    path, study, name = folder / "a.yaml", folder / "study.yaml", "vse-scenes"
    child = b"extends: vse-scenes\nstages:\n  online: {epochs: 2, loss: {triplet: null}}\n"
    shipped = Path(quintet.__file__).parent
    studies = [each.read_bytes() for each in sorted((shipped / "studies").glob("*.yaml"))[:2]]
    more = [each.read_bytes() for each in sorted((shipped / "recipes").glob("*.yaml"))[::20]]
    overrides = [b"stages.online.epochs=5", b"seed=1e3", b"matcher={name: scan}", b"stages.*.loss.triplet.margin=.2"]
    return [
        at_file(path, lambda: load_recipe(path), source, child, *more),
        at_file(path, lambda: show_recipe(path), child),
        Parser(lambda data: load_recipe(name, [data.decode("utf-8", "surrogateescape")]), overrides),
        at_file(study, lambda: load_study(study), *studies),
    ]


def corpora(made: Material, folder: Path) -> list[Parser]:
    """Corpora, image and word features, negative lists: JSON, JSONL, arrays."""
    corpus, lists, words = copy(made.corpus, folder), copy(made.lists, folder), folder / "words"
    features = corpus / "features/small"
    write_word_features(words, [2, 3], [np.ones((5, 4))], dim=4, dtype="float16", facts={})
    words = copy(words, folder / "copy")

    def read_corpus() -> None:
        opened = Corpus.open(corpus)
        for split in opened.splits:
            _ = opened.split(split).checksum

    def read_features() -> None:
        store = FeatureStore(features)
        store.check()

    def read_lists() -> None:
        opened = NegativeLists.open(lists)
        opened.check(_split(made))
        _ = opened.text_counts, opened.image_counts

    return [
        *files_of(corpus, ["corpus.json", "images.jsonl", "texts.jsonl", "splits.json"], read_corpus),
        *files_of(features, ["manifest.json", "ids.json", "*.npy"], read_features),
        *files_of(lists, ["manifest.json", "*.npy"], read_lists),
        *files_of(words, ["manifest.json", "*.npy"], lambda: WordFeatures(words).batch([0, 1], 3)),
    ]


_splits: dict[Path, Any] = {}


def lists(made: Material, folder: Path) -> list[Parser]:
    """Candidate lists made elsewhere, journals of mining and extraction, lock files."""
    split = _split(made)
    arrays = folder / "arrays"
    arrays.mkdir()
    images, each = len(split.images), len(split.texts) // len(split.images)
    others = (np.arange(images)[:, None] + [1, 2, 3]) % images  # (images, 3)
    (arrays / "i2t_lists.npy").write_bytes(npy(others * each))
    (arrays / "t2i_lists.npy").write_bytes(npy(others.repeat(each, axis=0)))
    journal, locked = folder / "journal", folder / "locked"
    Journal(journal, {"top": 3}).write(slice(0, 2), {"rows": np.arange(2)})
    locked.mkdir()
    pairs = [(split.images[row].id, split.texts[text].id) for row in range(images) for text in others[row] * each]
    pairs += [(split.images[others[row // each, 0]].id, text.id) for row, text in enumerate(split.texts)]
    rows = [{"image_id": image, "text_id": text, "score": 0.5, "direction": "i2t"} for image, text in pairs]
    rows += [row | {"direction": "t2i"} for row in rows]
    table = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]).encode()

    def read(path: Path) -> object:
        return read_lists(path, split, top_texts=1, top_images=1, note=lambda _: None)

    def mine() -> None:
        known = Journal(journal, {"top": 3})
        for start, stop in known.finished:
            known.read(start, stop)

    def lock(data: bytes) -> None:
        (locked / "lock").write_bytes(data)
        try:
            with folder_lock(locked, "fuzzing"):
                pass
        finally:
            (locked / "lock").unlink(missing_ok=True)

    return [
        at_file(folder / "table.csv", lambda: read(folder / "table.csv"), table),
        at_file(folder / "table.tsv", lambda: read(folder / "table.tsv"), table.replace(b",", b"\t")),
        at_file(
            folder / "table.jsonl", lambda: read(folder / "table.jsonl"), "\n".join(map(json.dumps, rows)).encode()
        ),
        *files_of(arrays, ["*.npy"], lambda: read(arrays)),
        *files_of(journal, ["journal.json", "*.npz"], mine),
        Parser(lock, [json.dumps(_content("fuzzing")).encode(), b"{}"]),
        Parser(_journal_row, [_journal_line(2, [Skipped("a", "damaged")])]),
    ]


def _split(made: Material) -> Any:
    if made.folder not in _splits:
        _splits[made.folder] = Corpus.open(made.corpus).split("train")
    return _splits[made.folder]


def imports(made: Material, folder: Path) -> list[Parser]:
    """Corpora of others: Flickr, Karpathy, COCO, people, languages, features, tables, Parquet, shards."""
    parsers: list[Parser] = []

    def source(format: str, file: str, *seeds: bytes, beside: dict[str, bytes] | None = None, **options: Any) -> None:
        top = folder / f"{len(parsers)}-{format}"
        (top / "images").mkdir(parents=True)
        for name, content in (beside or {}).items():
            (top / name).write_bytes(content)
        for name in ("a.jpg", "b.jpg"):
            (top / "images" / name).write_bytes(jpeg)
        reader = get_format(format)
        parsed = parse_options(reader, options)
        at = top if (top / file).suffix not in (".tar", ".tgz") else top / file
        out = folder / f"{len(parsers)}-out"

        def read() -> None:
            if reader.needs_out:
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir()
                parsed["out"] = ImageFolder(out)
            reader.read([at] if reader.many else at, **parsed)

        parsers.append(at_file(top / file, read, *seeds))

    jpeg = picture("JPEG", exif=False)
    tokens = b"a.jpg#0\ta dog\na.jpg#1\ttwo dogs\nb.jpg#0\ta cat\n"
    flickr = {
        "x.token.txt": tokens,
        "Flickr_8k.trainImages.txt": b"a.jpg\n",
        "Flickr_8k.devImages.txt": b"b.jpg\n",
        "Flickr_8k.testImages.txt": b"",
    }
    source("flickr", "x.token.txt", tokens, beside=flickr)
    source("flickr", "Flickr_8k.trainImages.txt", b"a.jpg\n", b"a\n", beside=flickr)
    sentences = [{"raw": "a dog"}, {"raw": "two dogs"}]
    rows = [{"filename": "a.jpg", "split": "train", "sentences": sentences, "imgid": 1, "cocoid": 2}]
    rows += [{"filename": "b.jpg", "split": "restval", "sentences": sentences[:1], "filepath": "x"}]
    source("karpathy", "dataset_x.json", json.dumps({"images": rows, "dataset": "x"}).encode())
    people = [{"split": "train", "file_path": "a.jpg", "captions": ["a man"], "id": 1}]
    source("cuhk", "reid_raw.json", json.dumps(people).encode())
    people[0]["img_path"] = people[0]["file_path"]
    source("rstp", "data_captions.json", json.dumps(people).encode())
    captions = [{"id": 5, "image_id": 2, "caption": "a dog"}, {"id": 6, "image_id": 2, "caption": "two"}]
    coco = json.dumps({"images": [{"id": 2, "file_name": "a.jpg"}], "annotations": captions}).encode()
    splits = [{"cocoid": 2, "split": "restval", "sentences": [{"sentid": 6}, {"sentid": 5}]}]
    karpathy = {"k.json": json.dumps({"images": splits}).encode(), "captions_train2017.json": coco}
    source("coco", "captions_train2017.json", coco, images="images")
    source("coco", "k.json", karpathy["k.json"], beside=karpathy, images="images", karpathy="k.json")
    languages = {"train.en": b"a dog\n", "train.de": b"ein Hund\n", "train.txt": b"a.jpg\n"}
    for name in ("train.de", "train.txt"):
        source("multi30k", name, languages[name], beside=languages)
    source("multi30k", "train.zh.gz", gzip.compress("一只狗\n".encode()), beside=languages)
    precomp = {
        "train_caps.txt": b"a dog\na cat\n",
        "train_ims.npy": npy(np.ones((2, 3, 4), np.float32)),
        "train_ids.txt": b"1\n2\n",
        "train_boxes.npy": npy(np.tile(np.array([0, 0, 5, 5], np.float32), (2, 3, 1))),
        "train_img_sizes.npy": npy(np.full((2, 2), 9)),
    }
    for name in precomp:
        source("precomp", name, precomp[name], beside=precomp)
    source("folder", "a.csv", b'image,caption,split\na.jpg,"a ""red"" dog",train\nb.jpg,a cat,test\n')
    source("folder", "a.tsv", b"file\ttext\tgroup\na.jpg\ta dog\t1\nb.jpg\ta cat\t1\n")
    source("folder", "a.jsonl", b'{"image": "a.jpg", "caption": ["a dog", "a"]}\n{"image": "b.jpg", "caption": "c"}\n')
    source("folder", "images/a.txt", b"a dog\ntwo dogs\n")
    rows_of = {
        "image": [{"bytes": jpeg, "path": "a.jpg"}],
        "sentences": [[{"raw": "a dog", "sentid": 1}]],
        "split": ["val"],
    }
    source("parquet", "train.parquet", parquet(rows_of), parquet({"jpg": [jpeg], "caption": ["a"], "key": [1]}))
    indexed = folder / "indexed.parquet"
    parsers.append(at_file(indexed, lambda: list(parquet_images(indexed, Notes(), "x")), parquet(rows_of)))
    failed = {"failed_to_download": 2, "failed_to_resize": 0}
    source("img2dataset", "0_stats.json", json.dumps(failed).encode(), beside={"0.tar": shard(jpeg, "w")})
    parsers.append(_import_journal(folder / "journal", shard(jpeg, "w")))
    parsers.append(Parser(lambda data: expand_braces(data.decode("utf-8", "replace")), [b"s3://b/{08..10}-{a,b}.tar"]))
    source("webdataset", "train.tar", *[shard(jpeg, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")])
    return parsers


def parquet(columns: dict[str, Any]) -> bytes:
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _import_journal(folder: Path, content: bytes) -> Parser:
    """What a killed import has left, when it is given again."""
    (folder / "out").mkdir(parents=True)
    (folder / "train.tar").write_bytes(content)
    read = get_format("webdataset").read
    read([folder / "train.tar"], out=ImageFolder(folder / "out"))
    journal = folder / "out" / journal_file.NAME
    return at_file(journal, lambda: read([folder / "train.tar"], out=ImageFolder(folder / "out")), b"{}\n")


def shard(image: bytes, mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        files = {"1.jpg": image, "1.txt": b"a dog\n", "2.jpg": image, "2.json": b'{"caption": ["a", "b"]}'}
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _judgements(made: Material, folder: Path) -> list[Parser]:
    """Relevant pairs, judgements of a crowd, result files, embeddings and rankings of other programs."""
    corpus = Corpus.open(made.corpus)
    split = corpus.split("train")
    image, text = split.images[0].id, split.texts[0].id
    texts = [replace(each, extra={"caption_id": row}) for row, each in enumerate(split.texts)]
    groups = {group: number for number, group in enumerate(split.groups)}
    coco = replace(split, texts=texts)
    files, ready = folder / "eccv", folder / "embeddings"
    crowd, run = folder / "CrowdFlowerAnnotations.txt", folder / "run.trec"
    files.mkdir()
    ready.mkdir()
    for kind, each in (("images", split.images), ("texts", split.texts)):
        (ready / f"{kind}.npy").write_bytes(npy(np.ones((len(each), 2), np.float32)))
        (ready / f"{kind}.txt").write_text("".join(f"{row.id}\n" for row in each))
    ids = {str(row): [groups[each.group]] for row, each in enumerate(texts)}
    for name, content in {
        "original_caption_to_image": ids,
        "eccv_caption_to_image": ids,
        "eccv_image_to_caption": {"0": [0, 1]},
    }.items():
        (files / f"{name}.json").write_text(json.dumps(content))
    result = {
        **{"members": ["a"], "protocol": "full", "split": "test", "split_checksum": "1", "settings": {"device": "cpu"}},
        "metrics": {**{f"{way}_r{cut}": 50.0 for way in ("i2t", "t2i") for cut in (1, 5, 10)}, "rsum": 300.0},
        "provenance": {
            **{"code": {"sources_sha256": "2"}, "machine": {"accelerator": None}},
            "runs": [{"name": "a", "weights_sha256": "3", "seed": 0}],
        },
    }
    rows = [{"image": image, "text": text, "grade": 2}, {"image": image, "text": split.texts[1].id, "direction": "i2t"}]
    return [
        *(
            at_file(folder / name, lambda name=name: read_relevance(folder / name, corpus, split), seed)  # type: ignore[misc]
            for name, seed in (
                ("relevance.jsonl", "\n".join(map(json.dumps, rows)).encode()),
                ("qrels.txt", f"{image} 0 {text} 1\n{text} 0 {image} 2\n".encode()),
            )
        ),
        *files_of(files, ["*.json"], lambda: coco_relevance("eccv", coco, files)),
        at_file(crowd, lambda: read_crowd_annotations(crowd), b"a.jpg\tb.jpg#0\t0.25\t1\t3\n"),
        at_file(folder / "result.json", lambda: read_entry(folder / "result.json"), json.dumps(result).encode()),
        at_file(run, lambda: read_run_file(f"trec:{run}", corpus, split), f"{image} Q0 {text} 1 0.5 x\n".encode()),
        *files_of(ready, ["*.npy", "*.txt"], lambda: read_embeddings(f"npy:{ready}", corpus, split)),
    ]


def words(made: Material, folder: Path) -> list[Parser]:
    """Word vectors (GloVe, word2vec), vocabularies, saved tokenizers, texts, judgements of people."""
    known = ["dog", "cat", "a", "b c", "ü"]
    glove = b"dog 0.1 -2e3 3\ncat 1 2 3\nb c 1 2 3\n"
    vectors = np.arange(3, dtype="<f4").tobytes()
    binary = b"2 3\ndog " + vectors + b"\ncat " + vectors
    scan = {"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "a": 4}, "idx": 5}
    scan["idx2word"] = {str(id_): word for word, id_ in scan["word2idx"].items()}
    pieces = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "dog"]).encode()
    (folder / "vocab.txt").write_bytes(pieces)
    tokenizer = WordPiece.load(folder / "vocab.txt", max_length=8)
    word_pieces = json.dumps(tokenizer.state()).encode()
    vocabulary = WordVocabulary.build(["a dog", "a man's T-shirt"], min_count=1)
    path = {name: folder / f"{name}.{end}" for name, end in (("vectors", "txt"), ("scan", "json"), ("hf", "json"))}

    def texts(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        assert len(vocabulary.ids(text)) == len(vocabulary.tokens(text))
        assert len(tokenizer.ids(text)) <= 8

    def load_saved() -> None:
        loaded = load_tokenizer(folder / "saved.json")
        loaded.ids("a dog")

    judged = folder / "ExpertAnnotations.txt"
    return [
        at_file(
            path["vectors"], lambda: read_word_vectors(path["vectors"], known), glove, binary, gzip.compress(glove)
        ),
        at_file(path["scan"], lambda: WordVocabulary.load_scan_json(path["scan"]), json.dumps(scan).encode()),
        at_file(folder / "vocab.txt", lambda: WordPiece.load(folder / "vocab.txt").ids("a dog")),
        at_file(
            path["hf"],
            lambda: WordPiece.load(path["hf"]).ids("ab"),
            json.dumps(tokenizer.state()["tokenizer"]).encode(),
        ),
        at_file(folder / "saved.json", load_saved, json.dumps(vocabulary.state()).encode(), word_pieces),
        Parser(texts, ["A man's “T-shirt” doesn't fit... (40)".encode(), b"a `b' -- c,d mr. x.", "été 漢字".encode()]),
        at_file(judged, lambda: read_expert_annotations(judged), b"a.jpg\tb.jpg#0\t1\t2\t3\n"),
        *_judgements(made, folder),
    ]


def indexes(made: Material, folder: Path) -> list[Parser]:
    """Local indexes: header, SQLite with items and manifest, vectors, FAISS's file; opened, searched and verified."""
    parsers = []
    with_faiss = folder / "made/faiss"
    material.index(made.run, made.images, with_faiss, store="faiss?kind=hnsw")
    for source, patterns in ((made.index, ["index.json", "items.sqlite", "vectors/*"]), (with_faiss, ["vectors/*"])):
        index = copy(source, folder)
        with contextlib.closing(sqlite3.connect(index / "items.sqlite")) as database:
            database.execute("PRAGMA journal_mode = DELETE")
            database.execute("PRAGMA page_size = 512")
            database.execute("VACUUM")
        parsers += [
            at_file(path, lambda index=index: _search(index))  # type: ignore[misc]
            for pattern in patterns
            for path in sorted(index.glob(pattern))
        ]
    index = folder / made.index.name
    manifests = [at_file(index / "items.sqlite", lambda: verify_index(index))]
    return [*parsers, *manifests, _manifest(index)]


def _search(index: Path) -> None:
    with Searcher.open(index, device="cpu") as searcher:
        hits = searcher.search_text([material.QUERY], k=5, where=parse_where("width>1"))[0]
        for hit in hits:
            with contextlib.suppress(quintet.QuintetError):
                searcher.image_path(hit.item.id)


def _manifest(index: Path) -> Parser:
    """The JSON in the database, as no mutation of its pages could change it."""
    path = index / "items.sqlite"
    before = path.read_bytes()
    with contextlib.closing(ItemDatabase.open_snapshot(path)) as database:
        manifest = json.dumps(database.head("manifest")).encode()

    def read(data: bytes) -> None:
        with contextlib.closing(ItemDatabase.open_writer(path, journal="DELETE")) as database, database.transaction():
            database.insert("head", [("manifest", data.decode("utf-8", "replace"))])
        try:
            _search(index)
        finally:
            path.write_bytes(before)

    return Parser(read, [manifest])


def images(made: Material, folder: Path) -> list[Parser]:
    """Images of an index and of uploads, EXIF data, JSON files beside images."""
    formats = [picture(name) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")]
    formats += [picture("PNG", mode) for mode in ("P", "I;16", "LA", "RGBA")] + [picture("JPEG", "CMYK")]
    load_decoders()
    for module, name in (("pillow_jxl", "JXL"), ("pillow_heif", "HEIF")):
        with contextlib.suppress(ImportError):
            encoder = importlib.import_module(module)  # the second is no dependency: it writes, pi-heif reads
            getattr(encoder, "register_heif_opener", lambda: None)()
            formats.append(picture(name))
            load_decoders()
    upload = folder / "upload"

    def index(data: bytes) -> None:
        image_format(io.BytesIO(data), "photo")
        size, exif, *_ = image_header(io.BytesIO(data))
        image_facts(size, exif)
        open_image(data)
        thumbnail(data, 16)

    def answer(task: str) -> Callable[[], object]:
        request = {"task": task, "name": "upload", "size": 32, "max_pixels": 10**6}
        return lambda: decoder._answer(upload, request)

    (folder / "photo.jpg").write_bytes(formats[0])
    beside = folder / "photo.json"
    fields = b'{"caption": "a red circle", "rating": 4.5, "taken at": "2024", "tags": ["a"], "ok": true}'
    return [
        Parser(index, formats),
        Parser(lambda data: open_image(data, name="photo.dng"), [picture("TIFF"), formats[0]]),
        *(at_file(upload, answer(task), *formats) for task in ("pixels", "thumbnail", "check")),
        at_file(beside, lambda: sidecar(folder / "photo.jpg", str(folder)), fields),
        Parser(parse_fields, [fields, b"[[1]]"]),
    ]


def picture(format: str, mode: str = "RGB", exif: bool = True) -> bytes:
    image = Image.fromarray(np.arange(48 * 3, dtype=np.uint8).reshape(6, 8, 3)).convert(mode if mode != "I;16" else "I")
    image = image.convert(mode) if mode == "I;16" else image
    data = Image.Exif()
    data[0x0112], data[0x0132] = 6, "2024:05:01 10:11:12"
    data.get_ifd(0x8769)[0x9003] = "2024:05:01 10:11:12"
    buffer = io.BytesIO()
    takes_exif = exif and format in ("JPEG", "PNG", "WEBP", "TIFF")
    image.save(buffer, format, **({"exif": data} if takes_exif else {}))
    return buffer.getvalue()


def requests(made: Material, folder: Path) -> list[Parser]:
    """Requests to the server: bodies, queries, headers, uploads. A status of 5xx is a crash."""
    index = copy(made.index, folder)
    settings = Settings(cache=folder / "cache", watch_s=3600.0, token="t" * 32, client_rate=0.0)
    app = create_app(Searchers(Searcher.open(index, device="cpu")), settings)
    client = TestClient(app)
    client.__enter__()  # until the process ends
    own = [(b"host", b"localhost"), (b"authorization", b"Bearer " + b"t" * 32)]

    def ask(method: str, path: str, query: bytes = b"", body: bytes = b"", headers: Headers = own) -> None:
        """As uvicorn does: no client in between that refuses what it would not send."""
        asked, answered = iter([{"type": "http.request", "body": body}]), []

        async def receive() -> Any:
            return next(asked, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            answered.append(message)

        scope = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path}
        scope |= {"raw_path": path.encode(), "query_string": query, "root_path": "", "headers": headers}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": dict(client.app_state)}
        assert client.portal is not None
        client.portal.call(app, scope, receive, send)
        text = b"".join(message.get("body", b"") for message in answered)[:200]
        assert answered[0]["status"] < 500, f"{method} {path}: {answered[0]['status']} {text!r}"

    def posted(path: str, query: bytes = b"") -> Callable[[bytes], None]:
        json_headers = [*own, (b"content-type", b"application/json")]
        return lambda data: ask("POST", path, query, data, json_headers)

    def queried(path: str) -> Callable[[bytes], None]:
        return lambda data: ask("GET", path, data)

    def header(data: bytes) -> None:
        name, _, value = data.partition(b":")
        ask("GET", "/api/index", headers=[own[0], (name.lower(), value.strip())])

    item = _first_item(index)
    search = {"query": "a red circle", "kind": "image", "limit": 3, "offset": 1, "where": 'width>=2 and path~"*.png"'}
    queries = [f"id={item}&limit=2&where=width%3E1".encode(), f"id={item}&size=320".encode(), b"id=%00"]
    headers = [b"authorization: Bearer x", b"cookie: quintet-session=x", b"host: [::1].evil", b"range: x"]
    return [
        Parser(posted("/api/search"), [json.dumps(search).encode(), b'{"query": "\\ud800"}']),
        Parser(posted("/api/explain"), [json.dumps({"query": "a red circle", "id": item}).encode()]),
        Parser(posted("/api/session"), [b'{"token": "x"}']),
        Parser(posted("/api/search/image", b"limit=2"), [picture(name) for name in ("JPEG", "PNG", "GIF")]),
        *(Parser(queried(f"/api/{name}"), queries) for name in ("similar", "item", "thumbnail", "image")),
        Parser(header, headers),
    ]


Headers = list[tuple[bytes, bytes]]


def _first_item(index: Path) -> str:
    with Searcher.open(index, device="cpu") as searcher:
        return searcher.search_text([material.QUERY], k=1)[0][0].item.id


def command_lines(made: Material, folder: Path) -> list[Parser]:
    """Filters (`--where`), and values of options and arguments as a shell passes them."""
    index, run, out = str(made.index), str(made.run), str(folder / "out")
    source = folder / "source"
    source.mkdir()
    (source / "a.csv").write_text("image,caption\na.jpg,a dog\n")
    checkpoint = folder / "best.tar"
    checkpoint.write_bytes(saved(material.checkpoint()))

    def line(*words: str, seeds: Sequence[bytes]) -> Parser:
        """Of the words, WORD is what is fuzzed."""

        def run_line(data: bytes) -> None:
            text = data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
            shutil.rmtree(out, ignore_errors=True)
            with _quiet():
                try:
                    status = app([each.replace("WORD", text) for each in words], prog_name="quintet")
                except SystemExit as ended:
                    status = ended.code
            assert status in (None, 0, 1, 2), status

        return Parser(run_line, seeds)

    def where(data: bytes) -> None:
        found = parse_where(data.decode("utf-8", "surrogateescape"))
        assert parse_where(str(found)) == found or not found
        found.matches({"kind": "image", "year": 2024, "ok": True, "path": "a/b.png", "score": 0.5})

    def store(data: bytes) -> None:
        open_store(f"local:{folder}/store?{data.decode('utf-8', 'replace')}", 4, create=True).close()

    filters = [b'kind=image and year>=2023 and path~"a/*"', b"ok=true and score<.5e1", b"a!='x\\'y'"]
    return [
        Parser(where, filters),
        line("search", index, "--device", "cpu", "--", "WORD", seeds=[b"a red circle", b"-k"]),
        line("search", index, "a red circle", "--where", "WORD", "--device", "cpu", seeds=filters),
        line("search", index, "a red circle", "-k", "WORD", "--device", "cpu", seeds=[b"3", b"-1", b"1e3"]),
        line("recipes", "show", "vse-scenes", "--set", "WORD", seeds=[b"seed=3", b"stages.online.epochs=[1, {a: b}]"]),
        line("convert", "bfan", str(checkpoint), "-o", out, "--option", "WORD", seeds=[b"lambda_softmax=9.0"]),
        line("data", "import", "folder", str(source), out, "--option", "WORD", seeds=[b"delimiter=;", b"seed=3"]),
        line("evaluate", run, "--corpus", str(made.corpus), "--split", "WORD", seeds=[b"nothing"]),
        line(
            "mine", run, str(made.corpus), "--split", "none", "-o", out, "--memory", "WORD", seeds=[b"8G", b"1.5 MiB"]
        ),
        Parser(lambda data: parse_size(data.decode("utf-8", "replace")), [b"8G", b" 1.5 MiB"]),
        Parser(store, [b"kind=flat", b"kind=hnsw&x=1"]),
    ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


TARGETS: dict[str, Target] = {
    "checkpoints": checkpoints,
    "runs": runs,
    "recipes": recipes,
    "corpora": corpora,
    "lists": lists,
    "imports": imports,
    "words": words,
    "indexes": indexes,
    "images": images,
    "requests": requests,
    "command lines": command_lines,
}
