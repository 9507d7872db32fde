"""What prompt injections say, in English and Chinese: families of expressions, each with a weight.

A weight is the share of injections among texts that hold such words, as this project judges it; families add up as
independent evidence does. All expressions are for text in lower case as `disguise.plain` writes it.
"""

# An expression that is broken over lines is harder to read than a long one.
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass

_UP_TO = r"(?:[^\n.!?()\[\]{};=]{0,40}[^a-z\n.!?()\[\]{};=])?"
_ORDERS = (
    r"(?:instructions?|prompts?|rules?|directions?|directives?|guidelines?|guardrails?|commands?|orders?|constraints?"
    r"|polic(?:y|ies)|programming|training|conversations?|context|restrictions?|system message)"
)
_BEFORE = (
    r"(?:previous|prior|above|earlier|preceding|foregoing|former|initial|original|existing|current|system|hidden|your"
    r"|all|any|every|these|those|safety|developer|given to you|you (?:got|were given|have been given|received))"
)
_IGNORE = (
    r"(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|ing)|bypass(?:ing)?|neglect|discard|drop|skip|abandon"
    r"|do not (?:follow|obey)|don't (?:follow|obey)|stop (?:following|obeying)|pay no attention to|set aside|void|erase)"
)
_TELL = (
    r"(?:reveal|show|print|repeat|output|display|leak|disclose|expose|dump|recite|echo|write out|spell out|tell me|give me"
    r"|share|send|provide|what (?:is|are|was|were)|translate|summari[sz]e|copy|paste|return|list)"
)
_ZH_IGNORE = "(?:忽略|无视|忘记|忘掉|不要?理会|不要?遵守|不要?遵循|放弃|跳过|绕过|覆盖|抛开)"
_ZH_ORDERS = "(?:指令|指示|提示|规则|要求|设定|命令|约束|限制|说明|对话|内容)"
_ZH_BEFORE = "(?:之前|以上|上面|先前|前面|此前|所有|系统|任何|你的|原来|上述|安全)"


@dataclass(frozen=True, slots=True)
class Family:
    """Expressions that mean one thing, and how much one of them says; `name` stands in the reason."""

    name: str
    weight: float
    expressions: tuple[str, ...]


FAMILIES: tuple[Family, ...] = (
    Family(
        "override",
        0.9,
        (
            rf"\b{_IGNORE}\b{_UP_TO}{_BEFORE}\b{_UP_TO}{_ORDERS}\b",
            rf"\b{_IGNORE}\b (?:everything|anything|all|what(?:ever)?)\b{_UP_TO}(?:above|before|previous(?:ly)?|earlier|prior|told|said|learned|know)\b",
            rf"{_ZH_IGNORE}[^\n。！？]{{0,12}}{_ZH_BEFORE}[^\n。！？]{{0,12}}{_ZH_ORDERS}",
            r"\bstop everything\b",
            r"\b(?:instructions?|rules?|prompt|restrictions|guidelines) (?:above|before this|so far)? ?(?:is|are|no longer|have been|has been) "
            r"(?:now )?(?:void|invalid|cancell?ed|revoked|suspended|lifted|replaced|appl(?:y|ies)|in effect)\b",
        ),
    ),
    Family(
        "extraction",
        0.7,
        (
            rf"\b{_TELL}\b{_UP_TO}(?:your|the|its|this|system|hidden|secret|initial|original|full|exact|entire)\b{_UP_TO}"
            r"(?:system|initial|original|hidden|secret|developer|base|internal|confidential) "
            r"(?:prompts?|instructions?|messages?|rules|guidelines|directives|configuration|setup)\b",
            rf"\b{_TELL}\b{_UP_TO}(?:your|the) (?:prompt|instructions|guidelines|rules)\b"
            r"(?: (?:word for word|verbatim|above|you were given|in full|exactly|to me))",
            r"\b(?:repeat|print|output|recite)\b[^\n.!?]{0,30}\b(?:everything|all (?:the )?(?:text|words)|the words|text) above\b",
            "(?:输出|显示|告诉我|透露|泄露|重复|打印|复述|翻译|展示)[^\n。！？]{0,12}"
            "(?:系统提示|系统指令|初始指令|初始提示|提示词|系统设定|隐藏(?:的)?指令|内部规则|开发者指令)",
        ),
    ),
    Family(
        "persona",
        0.6,
        (
            r"\b(?:do anything now|jailbr(?:eak|oken)|dan mode|developer mode (?:enabled|on|output)|god mode|evil mode|unrestricted mode)\b",
            r"\b(?:you are|you're|act(?:ing)? (?:as|like)|pretend(?:ing)? (?:to be|you are|that you)|role ?play(?:ing)? as|become|simulat(?:e|ing)|immerse yourself)\b"
            r"[^\n!?]{0,80}\b(?:unrestricted|uncensored|unfiltered|amoral|without (?:any )?(?:restrictions?|filters?|limits?|limitations|rules|censorship|ethic\w*|moral\w*|guidelines)"
            r"|no (?:restrictions?|filters?|limits?|limitations|rules|ethic\w*|moral\w*|guidelines)|(?:not|never|n't) (?:bound|restricted|limited|refuse)|dan\b|evil|free (?:from|of) (?:all|any))",
            r"\b(?:not|never|no longer|n't) (?:bound|constrained|limited|restricted) by\b[^\n.!?]{0,40}\b(?:rules|polic|guidelines|restrictions|ethic|openai|anthropic|content)",
            r"\bstay in (?:character|dan mode)\b|\bbroken? (?:free )?(?:of|from) the typical confines\b",
            r"\b(?:never|not|cannot|can't|won't) (?:ever )?(?:refuse|reject|decline|say no|censor)\b[^\n.!?]{0,60}\b(?:request|order|question|answer|anything|command|prompt|ask|words)",
            "(?:你现在是|扮演|假装|模拟|设想)[^\n。！？]{0,20}(?:没有任?何?限制|不受[^\n。]{0,6}(?:限制|约束)|无限制|越狱|没有道德|dan)",
            "越狱模式|开发者模式|上帝模式|无限制模式",
        ),
    ),
    Family(
        "lawless",
        0.5,
        (
            r"\b(?:regardless of|without (?:any )?(?:regards?|considerations?|thinking)(?: (?:for|of|to|about))?|no (?:sense|comprehension|concept) of|no regard for"
            r"|(?:does|do)(?: not|n't) (?:care|follow|have|give a \w+)|never cares?|sans|opposite of)\b[^\n.!?]{0,50}\b(?:moral|ethic|legal|openai|content polic|restriction)",
            r"\b(?:unfilte?red|uncensored|amoral|unethical|evil|unrestricted|jailbroken) (?:ai|assistant|chatbot|language model|response|answer|access|prompt)s?\b",
            "(?:没有|不受|移除|禁用|解除)[^\n。！？]{0,10}(?:安全限制|任何限制|内容过滤|安全过滤|安全准则|审查|约束)",
        ),
    ),
    Family(
        "forbidden things",
        0.35,
        (
            r"\b(?:illegal|unethical|immoral|amoral|inhumane|harmful|offensive|explicit|dangerous)(?:[ ,/;&]|or|and|ly){1,6}"
            r"(?:illegal|unethical|immoral|amoral|inhumane|harmful|offensive|explicit|dangerous)",
            r"\bnever (?:refuses?|declines?)\b|\bno (?:warnings?|disclaimers?)\b|\bwithout (?:any )?(?:warnings?|disclaimers?)\b",
        ),
    ),
    Family(
        "system prompt",
        0.4,
        (r"\b(?:your|the) (?:\w+ )?(?:system|initial|original|hidden|starting|secret) (?:prompts?|instructions?|messages?|configuration)\b",),
    ),
    Family(
        "new orders",
        0.45,
        (
            r"\b(?:new|updated|real|actual|true|revised|important) (?:system )?(?:instructions?|task|directives?|orders?)\b ?(?::|is to|are|for (?:the )?(?:ai|assistant|model))",
            r"\bfrom (?:now|this (?:point|moment)) (?:on|onwards?|forward),? (?:you|your|always|every|only|respond|answer)\b",
            r"\byour (?:new|only|real|sole) (?:task|goal|job|purpose|role|instruction)\b",
            r"\b(?:instead|just|only|now|simply),? (?:say|print|output|respond with|reply with|answer with|write)\b ?[:\"']",
            "(?:新的?|真正的?)(?:指令|任务|命令)(?:是|如下|[:：])|从现在(?:起|开始)[,，]?(?:你|请|只)|你的?新任务",
        ),
    ),
    Family(
        "authority",
        0.4,
        (
            r"\b(?:this is|i am|i'm|message from|on behalf of) (?:an? |the |your )?(?:order from |message from )?(?:the |your )?(?:system |ai |openai |anthropic )?(?:admin(?:istrator)?|developers?|creator|operator|openai|anthropic)\b",
            r"\b(?:admin|administrator|developer|system|root|sudo) (?:override|access granted|mode activated|command)\b",
        ),
    ),
    Family(
        "borders",
        0.6,
        (
            r"<\|?(?:im_start|im_end|system|endoftext|eot_id|start_header_id)\|?>",
            r"\[/?(?:inst|system|sys)\]|<</?sys>>|</?(?:system|instructions?|user_input|prompt)>",
            r"(?:^|\n) ?#{2,} ?(?:system|new instructions?|instructions? for|assistant|end of)\b",
            r"(?:^|\n) ?(?:system|assistant|developer) ?(?:message|prompt)? ?: ?(?:you|ignore|new|override|the user|from now)",
            r"\b(?:end|begin(?:ning)?|start) of (?:the )?(?:system )?(?:prompt|instructions|user input|context|document)\b",
        ),
    ),
    Family(
        "secrecy",
        0.5,
        (
            r"\b(?:do not|don't|never|without) (?:tell(?:ing)?|mention(?:ing)?|inform(?:ing)?|alert(?:ing)?|notify(?:ing)?|reveal(?:ing)?)\b[^\n.!?]{0,30}\b(?:users?|anyone|human|this instruction|these instructions)\b",
            "(?:不要|别|无需)(?:告诉|让|通知|向)[^\n。]{0,6}(?:用户|任何人|人类)",
        ),
    ),
    Family(
        "exfiltration",
        0.55,
        (
            r"!\[[^\]\n]{0,80}\]\(https?://[^\s)]{1,200}[?&=][^\s)]{0,40}(?:\{|%7b|\$|<|\[)",
            r"\b(?:send|forward|post|upload|exfiltrate|e-?mail|transmit|append)\b[^\n.!?]{0,60}\b(?:conversation|chat history|history|messages|secrets?|passwords?|api keys?|credentials|tokens?|private|confidential|user data|personal data)\b[^\n!?]{0,40}\b(?:to|at)\b[^\n]{0,10}(?:https?:|www\.|\S{1,40}@)",
        ),
    ),
    Family(
        "codes",
        0.45,
        (
            r"\bdecode\b[^\n.!?]{0,50}\b(?:base64|hex|rot13|following|string|below)\b[^\n!?]{0,50}\b(?:follow|execute|obey|run|comply|do what|carry out)\b",
            "解码[^\n。]{0,20}(?:并|然后)(?:执行|遵循|照做)",
        ),
    ),
)  # fmt: skip
