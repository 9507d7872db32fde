"""The small words that tell languages of the Latin script apart, and letters that only some of them write."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the a no so us up out be to of and in that have it for not on with he as you do at this but his"
        " by from they we say her she or an will my one all would there their what is are was were how can"
        " could should i'm don't does did has had which when where who why your please me if about than"
        " then been into some these those its i am any get",
        "de": "der die das und ist nicht ich sie er es wir ihr ein eine einen einem einer den dem des zu mit"
        " auf für von im am an aus bei nach über unter vor wie was wer wo wann warum kann können soll muss"
        " haben hat habe sind war waren wird werden auch aber oder wenn dass noch nur schon sehr mein"
        " meine bitte mir mich kein keine ihre zum zur",
        "fr": "le la les un une des du de et est pas je tu il elle nous vous ils elles que qui quoi dans sur"
        " pour par avec sans ce cette ces mon ma mes ton son sa ses leur au aux plus mais ou où comment"
        " pourquoi quand quel quelle être avoir fait peut suis sont était c'est j'ai n'est l' d' s'il y"
        " a-t-il ne se si très bien aussi comme",
        "es": "el la los las un una unos de del y es no yo tú él ella nosotros que quien qué en por para con"
        " sin sobre este esta estos esa ese mi mis tu su sus al más pero o dónde cómo cuándo cuál cuánto"
        " ser estar son está están fue tiene tengo puede puedo hay muy también como si lo le se me nos"
        " porque hasta desde entre cuando",
        "it": "il lo la i gli le un uno una di del della dei delle e è non io tu lui lei noi che chi cosa in"
        " nel nella per con su sul questo questa questi quello mio mia tuo suo sua al alla più ma o dove"
        " come quando perché quale essere avere sono sei era ha ho hanno può posso ci si anche molto già"
        " mi ti da dal dalla",
        "pt": "o a os as um uma de do da dos das e é não eu tu ele ela nós você vocês que quem em no na nos nas"
        " por para com sem sobre este esta isso esse meu minha seu sua ao à mais mas ou onde como quando"
        " qual quanto ser estar são está estão foi tem tenho pode posso há muito também se me lhe porque"
        " até desde entre pelo pela",
        "nl": "de het een en is niet ik jij hij zij wij je ze we van in op te met voor aan er maar om uit bij"
        " naar over door als dan dat die dit deze wat wie waar wanneer waarom hoe kan kunnen moet zal"
        " heeft hebben heb zijn was waren wordt worden ook of nog wel geen mijn jouw uw onze zou mij u al"
        " meer zo",
    }.items()
}

LETTERS: Mapping[str, str] = {"de": "äöüß", "fr": "çèêëîïôûœà", "es": "ñ¿¡áíóúé", "it": "ìòùàèé", "pt": "ãõçáéíóúâêô"}
"""Letters that speak for a language; those that several write speak for each."""
