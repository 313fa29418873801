from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.vocabulary import split_words

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


@pytest.mark.parametrize(("sentence", "expected"), AS_NLTK.items())
def test_like_nltk(sentence: str, expected: str) -> None:
    assert split_words(sentence) == expected.split()


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Dog\u2019s \u201cbest\u201d day\u2026", "dog 's `` best '' day \u2026"),
        ("the \u2018stop\u2019 sign", "the ' stop ' sign"),
        ("नमस्ते दुनिया।", "नमस्ते दुनिया ।"),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d \uff0c \u4e16\u754c \u3002"),
        ("¿Qué pasa?", "¿ qué pasa ?"),
        ("col·lecció", "col·lecció"),
        ("red\u2014blue", "red \u2014 blue"),
        ("ÉCOLE Straße ЖУК", "école straße жук"),
        ("a 😀 face", "a 😀 face"),
        ("a\u00a0dog\u200bruns", "a dog runs"),
        ("a dog. it runs. st. louis", "a dog . it runs . st. louis"),
    ],
)
def test_unicode_and_our_own_rules(sentence: str, expected: str) -> None:
    assert split_words(sentence) == expected.split()


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
