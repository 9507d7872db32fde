"""Languages are told by script and small words, and what cannot be told passes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validators.looks import verdict_of
from tests.validators.scripts import make_call
from validators.check import Context, Outcome, Stage
from validators.language import LANGUAGES, Language, language_of

SENTENCES = {
    "en": ["How do I cancel the card that I ordered last week?", "The train to London leaves at nine in the morning."],
    "de": ["Wie kann ich meine Karte sperren lassen?", "Der Zug nach Hamburg fährt um neun Uhr ab."],
    "fr": ["Comment puis-je annuler ma commande ?", "Le train pour Lyon part à neuf heures du matin."],
    "es": ["¿Cómo puedo cancelar mi tarjeta?", "El tren a Sevilla sale a las nueve de la mañana."],
    "it": ["Come posso annullare il mio ordine?", "Il treno per Milano parte alle nove di mattina."],
    "pt": ["Como posso cancelar o meu cartão?", "O trem para São Paulo sai às nove da manhã."],
    "nl": ["Hoe kan ik mijn bestelling annuleren?", "De trein naar Utrecht vertrekt om negen uur."],
    "zh": ["我怎么取消我的订单？"],
    "ja": ["注文をキャンセルするにはどうすればいいですか？"],
    "ko": ["주문을 어떻게 취소하나요?"],
    "ru": ["Как отменить мой заказ?"],
    "uk": ["Як мені скасувати замовлення?"],
    "el": ["Πώς μπορώ να ακυρώσω;"],
    "ar": ["كيف ألغي طلبي من فضلك؟"],
    "he": ["איך אני מבטל את ההזמנה?"],
    "hi": ["मैं अपना ऑर्डर कैसे रद्द करूँ?"],
    "th": ["ฉันจะยกเลิกคำสั่งซื้อได้อย่างไร"],
}  # fmt: skip
GERMAN = SENTENCES["de"][0]


@pytest.mark.parametrize(("language", "text"), [(one, text) for one, texts in SENTENCES.items() for text in texts])
def test_a_sentence_is_told(language: str, text: str) -> None:
    assert language_of(text) == language


def test_every_language_that_can_be_allowed_has_a_sentence() -> None:
    assert sorted(SENTENCES) == sorted(LANGUAGES)


def test_only_other_languages_are_refused() -> None:
    assert verdict_of("language", GERMAN, allow=["de", "en"]).outcome is Outcome.PASS
    refused = verdict_of("language", GERMAN, allow=["en"])
    assert (refused.outcome, refused.reason) == (Outcome.BLOCK, "it is in a language that is not allowed (de)")


@pytest.mark.parametrize("text", ["", "ok", "12345 67890 12345 67890 12345", "xkcd qwfp zxcv bnmw jklh wqzx", "شكر"])
def test_what_is_short_or_in_no_language_passes(text: str) -> None:
    assert verdict_of("language", text, allow=["en"]).outcome is Outcome.PASS


@pytest.mark.parametrize(("role", "outcome"), [("system", Outcome.PASS), ("user", Outcome.BLOCK)])
async def test_at_the_input_only_the_users_words_count(role: str, outcome: Outcome) -> None:
    request = make_call(messages=[{"role": role, "content": GERMAN}]).request
    context = Context(Stage.INPUT, "messages[0].content", request=request)

    assert (await Language(["en"]).check(GERMAN, context)).outcome is outcome


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "allow: must be a list"), ({"allow": ["xx"]}, "allow: 'xx' is not known; known: ar, de")],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict_of("language", "x", **options)
