"""Data sets of the hub that are well known, and which of their columns `hf` reads.

Nothing here was downloaded when it was written. `known` says what an entry was made from: the columns on the data set's
page ("card"), or a general description ("described"). Columns are looked at again when the data set is opened, so a
wrong entry gives an error that names the columns there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class HubDataset:
    about: str
    options: dict[str, str] = field(default_factory=dict)  # what `hf` is given where nothing else is said
    refused: str = ""  # why it cannot be imported by its name, and what to do
    known: str = "card"


_URLS = "it has URLs instead of images: fetch them with img2dataset, and import that with the format img2dataset"

HUB_DATASETS = {
    "jxie/flickr8k": HubDataset(
        "Flickr8k, 6,000 / 1,000 / 1,000 images", {"caption": "caption_0,caption_1,caption_2,caption_3,caption_4"}
    ),
    "umaru97/flickr30k_train_val_test": HubDataset(
        "Flickr30k in Karpathy's splits, 29,000 / 1,014 / 1,000 images", {"caption": "caption", "id": "filename"}
    ),
    "AnyModal/flickr30k": HubDataset(
        "Flickr30k in Karpathy's splits, 29,000 / 1,014 / 1,000 images", {"caption": "alt_text", "id": "filename"}
    ),
    "nlphuji/flickr30k": HubDataset(
        "Flickr30k, Karpathy's split in the column `split`; a script, which is never run: its converted Parquet files "
        "are read with revision=refs/convert/parquet",
        {"caption": "caption", "split": "split", "id": "filename", "revision": "refs/convert/parquet"},
    ),
    "lmms-lab/flickr30k": HubDataset(
        "Flickr30k without splits: all 31,783 images are in `test`", {"caption": "caption", "id": "filename"}
    ),
    "bitmind/MS-COCO": HubDataset(
        "COCO in Karpathy's splits, one row a caption, COCO's caption ids",
        {"caption": "sentences", "split": "split", "id": "cocoid"},
    ),
    "laicsiifes/coco-captions-pt-br": HubDataset(
        "COCO in Karpathy's splits, captions in Portuguese", {"caption": "caption", "split": "split", "id": "cocoid"}
    ),
    "undefined443/coco-karpathy-wds": HubDataset(
        "COCO in Karpathy's splits, as tar shards",
        refused="it is tar shards: `quintet data import webdataset` reads them where they lie, behind https:// too",
    ),
    "yerevann/coco-karpathy": HubDataset("COCO's captions in Karpathy's splits", refused=_URLS, known="described"),
    "PeterPanTheGenius/CUHK-PEDES": HubDataset(
        "CUHK-PEDES, one row a caption, without identities and splits: not the benchmark (see the format cuhk)",
        {"caption": "text", "id": "row"},
    ),
    "google-research-datasets/conceptual_captions": HubDataset("Conceptual Captions", refused=_URLS),
    "pixparse/cc3m-wds": HubDataset(
        "Conceptual Captions with images, as tar shards",
        refused="it is tar shards: `quintet data import webdataset` reads them where they lie, behind https:// too",
        known="described",
    ),
    "vicenteor/sbu_captions": HubDataset("SBU Captions", refused=_URLS, known="described"),
    "Marqo/deepfashion-multimodal": HubDataset(
        "DeepFashion-MultiModal, photographs of clothes with descriptions", {"caption": "text"}, known="described"
    ),
    "ashraq/fashion-product-images-small": HubDataset(
        "products of a fashion shop with their names", {"caption": "productDisplayName", "id": "id"}, known="described"
    ),
}
NOT_ON_THE_HUB = {
    "ICFG-PEDES, RSTPReid": "given out by their authors on request: see the formats icfg and rstp",
}
