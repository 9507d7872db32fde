from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.guard import Guard, Veto, load_guard


class NeverFull(dict[str, tuple[str, ...]]):
    """A memory that keeps nothing."""

    def __setitem__(self, key: str, value: tuple[str, ...]) -> None:
        return


VOCABULARY = """
how what is the a capital of france germany paris 5 10 kg mg not never unsafe safe from to london before after monday
tuesday cancel order don't £50 3pm 你 怎么 北京 上海 不 取消 订单 `x==1` "hi" Berlin OpenAI b1 sha256
60 minutes 1 hour , ? .
"""
WORDS = st.sampled_from(VOCABULARY.split())
TEXTS = st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=60)


@pytest.fixture(scope="module")
def guard() -> Guard:
    return load_guard()


VETOED = [
    ("number", "What is 17 times 23?", "What is 17 times 24?"),
    ("number", "Is it safe to fly at 30 weeks pregnant?", "Is it safe to fly at thirty-seven weeks pregnant?"),
    ("number", "Can I leave without notice?", "Can I leave without notice after 2 years?"),
    ("unit", "Is 400 mcg of folic acid enough?", "Is 400 mg of folic acid enough?"),
    ("unit", "How much is 90 kg in pounds?", "How much is 90 lb in pounds?"),
    ("date", "Who won the World Cup in 2014?", "Who won the World Cup in 2018?"),
    ("date", "Are you open on Saturday?", "Is the shop open on Sundays?"),
    ("version", "How do I install Python 3.11?", "How do I install Python 3.12?"),
    ("time", "Do you serve breakfast until 11:30?", "Do you serve breakfast until 10:30?"),
    ("id", "How long to reach b1 in French?", "How long to reach b2 in French?"),
    ("negation", "Which items can be recycled?", "Which items can't be recycled?"),
    ("negation", "Can I get this with a prescription?", "Can I get this without a prescription?"),
    ("antonym", "How do I turn on dark mode?", "How do I turn off dark mode?"),
    ("antonym", "Is port 6379 open by default?", "Is port 6379 closed by default?"),
    ("antonym", "Is this medicine safe in pregnancy?", "Is this medicine unsafe in pregnancy?"),
    ("antonym", "How do I turn the heating up?", "How do I turn the heating down?"),
    ("antonym", "List all even numbers below 20", "List all odd numbers below 20"),
    ("antonym", "All users can edit", "Some users can edit"),
    ("scope", "Where was Einstein born?", "When was Einstein born?"),
    ("scope", "Who invented the telephone?", "When's the telephone invented?"),
    ("entity", "What's the capital of France?", "What's the capital of Germany?"),
    ("entity", "Where is the Quillfeather office?", "In which street is the Brambleworth office?"),
    ("scope", "How much notice does a tenant give?", "What notice has a landlord to give?"),
    ("scope", "Is breakfast included for adults?", "Do kids get breakfast with the room?"),
    ("direction", "Move my ISA from Alpha to Beta", "I want to bring my ISA to Alpha from Beta"),
    ("order", "Is Rust faster than Zig?", "Is Zig faster than Rust?"),
    ("order", "Is A bigger than B?", "Is B bigger than A?"),
    ("order", "Does plan A cost more than plan B?", "Does plan B cost more than plan A?"),
    ("unit", "Convert 500 EUR to USD", "Convert 500 USD to EUR"),
    ("time_zone", "What time is 3pm EST in UTC?", "What time is 3pm EST in PST?"),
    ("percent", "My rate went up 5 percent, what is it?", "My rate went up 5 percentage points, what is it?"),
    ("quote", 'What does "brb" mean?', 'What does "afk" mean?'),
    ("code", "Why is a_b slow?", "Why is a_c slow?"),
    ("substitution", "What is the function of a flywheel?", "What is the function of a crankshaft?"),
    ("qualifier", "How do I deploy the application?", "How do I deploy the application with containers?"),
    ("qualifier", "Can I get the flu jab for free?", "Can my child get the flu jab for free?"),
    ("entity", "北京今天天气怎么样", "上海今天天气怎么样"),
    ("entity", "中国的首都是哪里", "法国的首都是哪里"),
    ("scope", "爱因斯坦在哪里出生", "爱因斯坦什么时候出生"),
    ("scope", "谁发明了电话", "电话是什么时候发明的"),
    ("unit", "100美元换多少人民币", "100人民币换多少美元"),
    ("number", "3个月的签证怎么办理", "6个月的签证怎么办理"),
    ("date", "周一几点开门", "周日几点开门"),
    ("negation", "这个药孕妇可以吃吗", "这个药孕妇不可以吃吗"),
    ("antonym", "怎么打开自动续费", "怎么关闭自动续费"),
    ("direction", "从北京到上海的火车票", "从上海到北京的火车票"),
    ("scope", "成人票多少钱", "儿童票多少钱"),
    ("substitution", "怎么修理水龙头", "怎么修理洗衣机"),
]


@pytest.mark.parametrize(("reason", "a", "b"), VETOED)
def test_what_changes_the_answer_is_vetoed_with_its_reason(guard: Guard, reason: str, a: str, b: str) -> None:
    veto = guard(a, b)

    assert veto is not None
    assert veto.reason == reason


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("What is the capital of France?", "What's the capital of France?"),
        ("What is the capital of France?", "What city is France's capital?"),
        ("How do I reset my password?", "hi, quick question: how can I reset my pasword please? thanks!"),
        ("How do I dispute a transaction?", "How do I challenge a transaction?"),
        ("How do I set the colour of a border?", "How do I set the color of a border?"),
        ("On my phone, how do I set up voicemail?", "How do I set up voicemail on my phone?"),
        ("How long should I roast a 2kg chicken?", "How long do I roast a chicken of 2 kilos?"),
        ("Is it 60 minutes long?", "Is it 1 hour long?"),
        ("What's 1,000 USD in GBP?", "What is $1000 in pounds?"),
        (
            "What is the difference between a thread and a process?",
            "What's the difference between a process and a thread?",
        ),
        ("What does GDPR require?", "What does the General Data Protection Regulation require?"),
        ("How do I merge two lists?", "How do I combine 2 lists?"),
        ("What city was Einstein born in?", "Where was Einstein born?"),
        ("What time do you open?", "When do you open?"),
        ("Who is the CEO of Microsoft?", "Who runs Microsoft?"),
        ("什么时候开门", "请问几点开门？"),
        ("怎么取消订单", "请问如何取消订单？"),
        ("法国的首都是哪里", "请问法国首都是哪里？"),
        ("What is the difference between plan A and plan B?", "What's the difference between plan B and plan A?"),
        ("退款多久到账", "您好，请问退款多久到账呢"),
        ("怎样修改手机的密码", "如何更改手机密码"),
    ],
)
def test_what_leaves_the_answer_as_it_is_passes(guard: Guard, a: str, b: str) -> None:
    assert guard(a, b) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Capital of Austria?", "Capital of Australia?"),
        ("Is sertraline safe?", "Is cetirizine safe?"),
        ("How do I mute a chat?", "How do I unmute a chat?"),
        ("Is a column nullable?", "Is a column non-nullable?"),
    ],
)
def test_two_words_that_are_near_in_letters_are_no_misspelling_of_one(guard: Guard, a: str, b: str) -> None:
    assert guard(a, b) is not None


@given(TEXTS, TEXTS)
@settings(max_examples=300, deadline=None)
def test_the_verdict_does_not_depend_on_the_order_of_the_two(a: str, b: str) -> None:
    assert GUARD(a, b) == GUARD(b, a)


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_a_question_never_differs_from_itself(text: str) -> None:
    assert GUARD(text, text) is None


@given(TEXTS, TEXTS)
@settings(max_examples=100, deadline=None)
def test_what_was_read_before_changes_no_verdict(a: str, b: str) -> None:
    GUARD(b + a, a)

    assert GUARD(a, b) == FORGETFUL(a, b)


def test_a_veto_says_which_words(guard: Guard) -> None:
    assert guard("Are you open on Saturday?", "Are you open on Sunday?") == Veto("date", "saturday / sunday")


GUARD = load_guard()
FORGETFUL = Guard(replace(GUARD.lexicon, remembered=NeverFull()))
