from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.vocabulary import SPECIAL_TOKENS, WordVocabulary, split_words
from quintet.errors import QuintetError, RunError
from quintet.files import read_json, write_json

TEXTS = ["A dog runs.", "A dog sits.", "the cat sits.", "A zebra"]


def test_order_is_falling_count_then_alphabet() -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1)
    assert vocabulary.words == [*SPECIAL_TOKENS, ".", "a", "dog", "sits", "cat", "runs", "the", "zebra"]


def test_the_order_of_texts_does_not_matter() -> None:
    shuffled = TEXTS * 3
    random.Random(0).shuffle(shuffled)
    assert WordVocabulary.build(shuffled).words == WordVocabulary.build(TEXTS * 3).words


def test_min_count_defaults_to_four() -> None:
    assert WordVocabulary.build(["dog"] * 4 + ["cat"] * 3).words == [*SPECIAL_TOKENS, "dog"]


def test_max_words_keeps_the_most_frequent() -> None:
    assert WordVocabulary.build(TEXTS, min_count=1, max_words=2).words == [*SPECIAL_TOKENS, ".", "a"]


def test_a_caption_that_spells_a_mark_does_not_become_one() -> None:
    vocabulary = WordVocabulary.build(["<pad> <start> a"], min_count=1)
    assert vocabulary.ids("<pad>").count(0) == 0
    assert len(set(vocabulary.words)) == len(vocabulary.words)


def test_ids_with_and_without_marks() -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1)
    bare = WordVocabulary(vocabulary.words, special_tokens=False)
    assert vocabulary.ids("A dog flies") == [1, 5, 6, 3, 2]
    assert bare.ids("A dog flies") == [5, 6, 3]
    assert vocabulary.ids("") == [1, 2]
    assert bare.ids("") == [3]
    assert vocabulary.pad == 0


def test_longest_cuts_and_keeps_the_marks() -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1, max_length=4)
    assert vocabulary.tokens("a dog sits .") == ["<start>", "a", "dog", "<end>"]
    assert vocabulary.ids("a dog sits .") == [1, 5, 6, 2]
    again = WordVocabulary.from_state(vocabulary.state())
    assert again.ids("a " * 50) == [1, 5, 5, 2]
    assert WordVocabulary(vocabulary.words, special_tokens=False, max_length=3).ids("a " * 50) == [5, 5, 5]
    with pytest.raises(ValueError, match="max_length"):
        WordVocabulary(vocabulary.words, max_length=2)


@settings(deadline=None)
@given(st.text())
def test_tokens_are_as_many_as_ids(text: str) -> None:
    for marks in (True, False):
        vocabulary = WordVocabulary([*SPECIAL_TOKENS, "a", "."], special_tokens=marks)
        assert len(vocabulary.ids(text)) == len(vocabulary.tokens(text)) >= 1


def test_coverage_counts_unknown_words() -> None:
    vocabulary = WordVocabulary.build(["a dog"], min_count=1)
    coverage = vocabulary.coverage(["a cat", "a cat and a dog", "an owl"])
    assert (coverage.tokens, coverage.unknown) == (9, 5)
    assert coverage.examples == (("cat", 2), ("an", 1), ("and", 1), ("owl", 1))
    assert "5 of 9" in str(coverage)
    assert vocabulary.coverage([]).tokens == 0
    assert "0.00 %" in str(vocabulary.coverage([]))


def test_state_round_trip_in_utf8(tmp_path: Path) -> None:
    vocabulary = WordVocabulary.build(["Ein Hündchen läuft 走る"], min_count=1, special_tokens=False)
    write_json(tmp_path / "words.json", vocabulary.state())
    again = WordVocabulary.from_state(read_json(tmp_path / "words.json"))
    assert (again.words, again.special_tokens) == (vocabulary.words, False)
    assert again.ids("hündchen 走る") == vocabulary.ids("hündchen 走る")
    assert 3 not in again.ids("hündchen 走る")


@pytest.mark.parametrize("state", [{}, {"words": "abc"}, {"words": [1, 2]}])
def test_a_damaged_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="damaged"):
        WordVocabulary.from_state(state)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(QuintetError, match="starts with"):
        WordVocabulary(["a", "b", "c", "d", "e"])
    with pytest.raises(QuintetError, match="'dog' more than once"):
        WordVocabulary([*SPECIAL_TOKENS, "dog", "dog"])
    with pytest.raises(ValueError, match="min_count"):
        WordVocabulary.build([], min_count=0)


def scan_json(words: list[str]) -> dict[str, Any]:
    return {
        "word2idx": {word: id_ for id_, word in enumerate(words)},
        "idx2word": {str(id_): word for id_, word in enumerate(words)},
        "idx": len(words),
    }


def test_scan_json_is_read(tmp_path: Path) -> None:
    words = [*SPECIAL_TOKENS, "zoo", "dog", "café"]  # SCAN's order is arbitrary
    (tmp_path / "vocab.json").write_text(json.dumps(scan_json(words)), encoding="utf-8")
    vocabulary = WordVocabulary.load_scan_json(tmp_path / "vocab.json")
    assert vocabulary.words == words
    assert vocabulary.ids("Dog café bird") == [1, 5, 6, 3, 2]


def broken_scan() -> list[tuple[str, Any, str]]:
    words = [*SPECIAL_TOKENS, "dog", "cat"]
    swapped = scan_json(words)
    swapped["word2idx"] |= {"dog": 5, "cat": 4}
    size = scan_json(words) | {"idx": 7}
    gap = scan_json(words)
    gap["idx2word"]["9"] = gap["idx2word"].pop("5")
    shorter = scan_json(words)
    del shorter["word2idx"]["cat"]
    keys = scan_json(words)
    del keys["idx"]
    marks = scan_json(["<start>", "<pad>", "<end>", "<unk>", "dog"])
    lists = {"word2idx": words, "idx2word": words, "idx": 6}
    return [
        ("swapped", swapped, "'dog' is 4 in idx2word but 5"),
        ("size", size, "idx says 7"),
        ("gap", gap, "no word 5"),
        ("shorter", shorter, "word2idx has 5 words"),
        ("keys", keys, "has the keys word2idx"),
        ("marks", marks, "starts with <pad>"),
        ("lists", lists, "must be objects"),
        ("list", [1], "has the keys"),
    ]


@pytest.mark.parametrize(
    ("saved", "message"), [row[1:] for row in broken_scan()], ids=[row[0] for row in broken_scan()]
)
def test_inconsistent_scan_json_is_refused(tmp_path: Path, saved: Any, message: str) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(saved), encoding="utf-8")
    with pytest.raises(QuintetError, match=message) as caught:
        WordVocabulary.load_scan_json(tmp_path / "vocab.json")
    assert "vocab.json" in str(caught.value)


def test_flickr8k_training_captions_are_covered(shared: Path) -> None:
    lines = (shared / "flickr8k" / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t", 1)[1] for line in lines if "\t" in line][:5000]
    vocabulary = WordVocabulary.build(texts, min_count=4)
    coverage = vocabulary.coverage(texts)
    assert coverage.unknown / coverage.tokens < 0.06
    assert all(word == word.lower() for word in vocabulary.words)
    assert coverage.tokens == sum(len(split_words(text)) for text in texts)


def test_unknown_words_can_be_dropped_before_the_cut() -> None:
    vocabulary = WordVocabulary.build(
        ["a dog runs fast"], min_count=1, special_tokens=False, max_length=3, drop_unknown=True
    )
    a, dog, fast, runs = (vocabulary.words.index(word) for word in ("a", "dog", "fast", "runs"))
    assert vocabulary.ids("a grey dog and a fast cat runs") == [a, dog, a]
    assert vocabulary.tokens("a grey dog and a fast cat runs") == ["a", "dog", "a"]
    assert vocabulary.ids("fast zebra runs") == [fast, runs]
    assert vocabulary.ids("zebras!") == [vocabulary.pad], "an empty text"
    assert vocabulary.tokens("zebras!") == ["<pad>"]
    again = WordVocabulary.from_state(vocabulary.state())
    assert again.ids("the fast zebra") == [fast]


def test_case_can_be_kept() -> None:
    vocabulary = WordVocabulary.build(["The Dog", "the dog", "The dog"], min_count=1, case=True)
    assert vocabulary.words[4:] == ["The", "dog", "Dog", "the"]
    assert WordVocabulary.from_state(vocabulary.state()).ids("the Dog") == [1, 7, 6, 2]
    assert vocabulary.coverage(["DOG"]).unknown == 1


def test_only_some_words() -> None:
    vocabulary = WordVocabulary.build(TEXTS, min_count=1, special_tokens=False, drop_unknown=True, case=True)
    kept = vocabulary.only({"dog", "sits", "<unk>", "owl"})
    assert kept.words == [*SPECIAL_TOKENS, "dog", "sits"]
    assert kept.ids("A dog sits") == [4, 5]


# Expected values: NLTKWordTokenizer of nltk 3.10.4 on the lower-cased text, taken as one text.
AS_NLTK = {
    "The dog's ball isn't red.": "the dog 's ball is n't red .",
    'A man says "hello there" loudly.': "a man says `` hello there '' loudly .",
    "Two kids' toys, three cars: one bus; etc.": "two kids ' toys , three cars : one bus ; etc .",
    "It costs $3.50 (50% off)!": "it costs $ 3.50 ( 50 % off ) !",
    "The U.S. flag waves.": "the u.s. flag waves .",
    "U.S.": "u.s .",
    "Mr. Smith can't go, he'll wait.": "mr. smith ca n't go , he 'll wait .",
    "10,000 people at 5:30 p.m. today": "10,000 people at 5:30 p.m. today",
    "rock 'n' roll band": "rock 'n ' roll band",
    "He's gonna go... maybe": "he 's gon na go ... maybe",
    "wait--what?": "wait -- what ?",
    'A sign reads "STOP."': "a sign reads `` stop . ''",
    "(a man.)": "( a man . )",
    "black&white photo #1 @home": "black & white photo # 1 @ home",
    "a [small] {cat} <here>": "a [ small ] { cat } < here >",
    "and/or t-shirt 3.5 4x4": "and/or t-shirt 3.5 4x4",
    "at 3 o'clock, 90's style": "at 3 o'clock , 90 's style",
    "cannot": "can not",
    "shouldn't.": "should n't .",
    "What?!": "what ? !",
    "''quoted''": "'' quoted ''",
    "..": "..",
    "": "",
    "  \t\n ": "",
}


@pytest.mark.parametrize(("text", "expected"), AS_NLTK.items())
def test_like_nltk(text: str, expected: str) -> None:
    assert split_words(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dog\u2019s \u201cbest\u201d day\u2026", "dog 's `` best '' day \u2026"),
        ("the \u2018stop\u2019 sign", "the ' stop ' sign"),
        ("नमस्ते दुनिया।", "नमस्ते दुनिया ।"),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60 \u597d \uff0c \u4e16 \u754c \u3002"),
        ("スケートボードに乗る3匹の犬とTシャツ", "スケートボード に 乗 る 3 匹 の 犬 と t シャツ"),
        ("ｶﾞ葛\U000e0100か\u3099 a \u2764\ufe0f", "ｶﾞ 葛\U000e0100 \u304c a \u2764\ufe0f"),
        ("ผู้ชายดื่มน้ำ 25", "ผู้ ช า ย ดื่ ม น้ำ 25"),
        ("ភ្នំ မြန်မာ", "ភ្នំ မြ န် မာ"),
        ("एक लड़की चित्र बनाती है।", "एक लड़की चित्र बनाती है ।"),
        ("رجلٌ يركب درّاجة، سريعاً؟", "رجلٌ يركب درّاجة ، سريعاً ؟"),
        ("한 남자가 자전거를 탄다.", "한 남자가 자전거를 탄다 ."),
        ("Zwei „große“ Hunde", "zwei `` große '' hunde"),
        ("¿Qué pasa?", "¿ qué pasa ?"),
        ("col·lecció", "col·lecció"),
        ("red\u2014blue", "red \u2014 blue"),
        ("ÉCOLE Straße ЖУК", "école straße жук"),
        ("a 😀 face", "a 😀 face"),
        ("a\u00a0dog\u200bruns", "a dog runs"),
        ("a dog. it runs. st. louis", "a dog . it runs . st. louis"),
    ],
)
def test_unicode_and_our_own_rules(text: str, expected: str) -> None:
    assert split_words(text) == expected.split()


# Captions of the same three images; the fourth says in words of the others what another image shows.
FORMS = {
    "German": ("Ein Hund läuft über Eis.", "Zwei Hunde spielen Fußball.", "Ein Hund ruht.", "Zwei Hunde über Eis."),
    "Chinese": ("一只狗在雪地里奔跑。", "两个女孩在踢足球。", "一只狗在睡觉。", "两个女孩在雪地里睡觉。"),
    "Japanese": ("犬が雪の上を走る。", "二人の女の子がサッカーをする。", "犬が寝る。", "女の子が雪の上を走る。"),
    "Thai": ("สุนัขวิ่งบนหิมะ", "เด็กผู้หญิงสองคนเล่นฟุตบอล", "สุนัขนอนหลับ", "เด็กผู้หญิงวิ่งบนหิมะ"),
    "Arabic": ("كلب يركض على الثلج.", "فتاتان تلعبان كرة القدم.", "كلب نائم.", "كلب يركض على كرة القدم"),
    "Hindi": ("एक कुत्ता बर्फ पर दौड़ता है।", "दो लड़कियाँ फुटबॉल खेलती हैं।", "एक कुत्ता सोता है।", "एक कुत्ता फुटबॉल पर सोता है।"),
}  # fmt: skip


@pytest.mark.parametrize(("language", "texts"), FORMS.items(), ids=FORMS)
def test_captions_of_any_script_are_words(language: str, texts: tuple[str, ...]) -> None:
    *training, new = texts
    vocabulary = WordVocabulary.build(training, min_count=1)
    coverage = vocabulary.coverage([new])
    assert coverage.unknown == 0
    assert coverage.tokens > 3, "a text of several words is not one word"
    ids = [vocabulary.ids(text) for text in texts]
    assert len({tuple(each) for each in ids}) == 4
    assert vocabulary.tokens(new)[1:-1] == split_words(new)
    words = vocabulary.plain_words()
    assert any(len(word) < 3 for word in words) == (language in ("Chinese", "Japanese", "Thai"))
    assert len(words) > 5


def test_english_words_are_those_of_the_runs_trained_before(shared: Path) -> None:
    lines = (shared / "flickr8k" / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = WordVocabulary.build([line.split("\t", 1)[1] for line in lines if "\t" in line], min_count=1)
    checksum = hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()
    assert checksum == "2b29f66e762f4375154711d69034a1af60dce3f21bd42abaeafe36fce87ebc14"


def test_one_word_has_one_spelling() -> None:
    decomposed = unicodedata.normalize("NFD", "Café")
    assert decomposed != "Café"
    assert split_words(decomposed) == split_words("Café") == ["café"]


@settings(deadline=None)
@given(st.text())
def test_any_text_gives_clean_words_and_loses_no_letter(text: str) -> None:
    words = split_words(text)
    assert all(word and not any(char.isspace() for char in word) for word in words)
    letters = [char for char in unicodedata.normalize("NFC", text.lower()) if char.isalnum()]
    assert [char for char in "".join(words) if char.isalnum()] == letters


def test_a_very_long_text_is_quick() -> None:
    assert len(split_words("it's (a) dog, " * 10_000)) == 70_000
    for char in "'.\"-(,a":
        assert split_words(char * 20_000)


def test_capitals_can_stay() -> None:
    assert split_words("The Dog's ball, OK?", lower=False) == ["The", "Dog", "'s", "ball", ",", "OK", "?"]
