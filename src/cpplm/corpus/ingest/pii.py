"""E-mail addresses and secrets out of source text, before anything computes an offset in it.

Linear in the text and cheap where it holds none: each rule starts from a literal that `bytes.find` looks for.
A replacement never adds or removes a line, a quote or a backslash, so code that compiled still compiles; a
second call changes nothing. Names in copyright notices stay: licenses ask for them. The token forms are those
that their issuers document. (detect-secrets, tried for this, took 2.9 s per MB and reports lines, not spans.)
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import NamedTuple

EMAIL = b"email@example.com"
SECRET = b"REDACTED"

Span = tuple[int, int, bytes]  # start, end, what stands there instead


class PiiFinding(NamedTuple):
    """A replacement's kind and its line (from 1); never the value itself."""

    kind: str
    line: int


# Domains that nobody can own (RFC 2606), so an address there is an example and not a person.
_RESERVED = re.compile(rb"(?:^|\.)(?:example\.(?:com|org|net|edu)|example|test|invalid|localhost|local)$")
_DOMAIN = re.compile(rb"@((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,8}[A-Za-z]{2,24})(?![A-Za-z0-9_-])")
_LOCAL = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}\Z")
_LONGEST_LOCAL = 64
# The first letter of "\nuser@host" belongs to an escape.
_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\[abfnrtv0]\Z")

_KEY_BLOCK = re.compile(
    rb"-----BEGIN ([A-Z0-9 ]{0,40})PRIVATE KEY(?: BLOCK)?-----"
    rb"([A-Za-z0-9+/=\s\"\\,*:.-]{64,20000}?)"  # nothing that only code has: no ; ( ) { } _ < >
    rb"-----END \1PRIVATE KEY"
)
_KEY_TEXT = re.compile(rb"(?:(?<=\\n)|(?<![\\A-Za-z0-9+/=]))[A-Za-z0-9+/=]{12,}")
_KEY_LINE = re.compile(rb"[A-Za-z0-9+/=]{40}")

_AUTHORITY = re.compile(rb"://(?:[^\s/\"'<>]{0,64}:)?\Z")
# Passwords that are examples or placeholders.
_URL = re.compile(rb"://([^\s/:@\"'<>\\?#]{0,64}):([^\s/:@\"'<>\\?#]{1,128})@(?=[A-Za-z0-9\[])")
_NO_PASSWORD = re.compile(
    rb"(?i)(?:[x*.]+|redacted|pw|pwd|pass|passw|passwd|password|secret|token|key|foo|bar|[%${\[].*|.*[})\]])\Z"
)

# Literal, then the whole token. The word before may not run into it, nor the text after.
_TOKENS: tuple[tuple[str, tuple[bytes, ...], bytes], ...] = (
    ("AWS key", (b"AKIA", b"ASIA"), rb"(?:AKIA|ASIA)[0-9A-Z]{16}"),
    ("GitHub token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"gh[pousr]_[A-Za-z0-9]{36,255}"),
    ("GitHub token", (b"github_pat_",), rb"github_pat_[A-Za-z0-9_]{60,255}"),
    ("GitLab token", (b"glpat-",), rb"glpat-[A-Za-z0-9_-]{20,64}"),
    ("Slack token", (b"xox",), rb"xox[abposr]-[0-9A-Za-z-]{20,250}"),
    ("Slack webhook", (b"hooks.slack.com/",), rb"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/\w{16,}"),
    ("Google key", (b"AIza",), rb"AIza[0-9A-Za-z_-]{35}"),
    ("Google client secret", (b"GOCSPX-",), rb"GOCSPX-[0-9A-Za-z_-]{28}"),
    ("Stripe key", (b"k_live_",), rb"[rs]k_live_[0-9a-zA-Z]{24,99}"),
    ("OpenAI key", (b"T3BlbkFJ",), rb"sk-[A-Za-z0-9_-]{20,80}T3BlbkFJ[A-Za-z0-9_-]{20,80}"),
    ("Anthropic key", (b"sk-ant-",), rb"sk-ant-[A-Za-z0-9_-]{32,128}"),
    ("Hugging Face token", (b"hf_",), rb"hf_[A-Za-z]{34}"),
    ("npm token", (b"npm_",), rb"npm_[A-Za-z0-9]{36}"),
    ("PyPI token", (b"pypi-AgE",), rb"pypi-AgE[A-Za-z0-9_-]{50,}"),
    ("SendGrid key", (b"SG.",), rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    ("JSON web token", (b"eyJ",), rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}"),
    ("Azure storage key", (b"AccountKey=",), rb"AccountKey=[A-Za-z0-9+/]{86}=="),
)
_COMPILED = tuple(
    (kind, literals, re.compile(rb"(?<![A-Za-z0-9_])" + pattern + rb"(?![A-Za-z0-9])"))
    for kind, literals, pattern in _TOKENS
)


def redact(text: bytes) -> tuple[bytes, list[PiiFinding]]:
    """The text without e-mail addresses and secrets, and what was replaced, in order.

    The same object comes back when nothing was found. Lines and everything outside the replaced spans stay.
    """
    findings: list[PiiFinding] = []
    while spans := _find(text):  # again, since a replacement may end a word that had hidden a token
        text, more = _replace(text, spans)
        findings += more
    return text, sorted(findings, key=lambda finding: finding.line)


def _find(text: bytes) -> list[tuple[str, Span]]:
    """Spans to be replaced, in no order; they may overlap."""
    spans: list[tuple[str, Span]] = []
    if b"PRIVATE KEY" in text:
        spans += _private_keys(text)
    if b"://" in text:
        spans += (("password in a URL", span) for span in _url_passwords(text))
    for kind, literals, pattern in _COMPILED:
        if any(literal in text for literal in literals):
            spans += ((kind, (match.start(), match.end(), SECRET)) for match in pattern.finditer(text))
    if b"@" in text:
        spans += (("e-mail address", span) for span in _addresses(text))
    return spans


def _replace(text: bytes, spans: list[tuple[str, Span]]) -> tuple[bytes, list[PiiFinding]]:
    """Put the replacements in; of two spans that overlap the first one wins, then the longer one."""
    newlines = [match.start() for match in re.finditer(rb"\n", text)]
    parts: list[bytes] = []
    findings: list[PiiFinding] = []
    end = 0
    for kind, (start, stop, replacement) in sorted(spans, key=lambda one: (one[1][0], -one[1][1])):
        if start < end:
            continue
        parts += (text[end:start], replacement)
        end = stop
        if kind:
            findings.append(PiiFinding(kind, bisect.bisect_left(newlines, start) + 1))
    return b"".join((*parts, text[end:])), findings


def _addresses(text: bytes) -> Iterator[Span]:
    """`local@domain.tld`; not in a reserved domain, a URL, a format (`%s@host.com`) or a `git@host`."""
    for match in _DOMAIN.finditer(text):
        at = match.start()
        before = text[max(0, at - _LONGEST_LOCAL) : at]
        local = _LOCAL.search(before)
        if local is None or _RESERVED.search(match[1].lower()):
            continue
        start = at - len(local[0])
        if _ESCAPE.search(text[max(0, start - 8) : start + 1]):
            start += 1  # the letter belongs to an escape such as \n
        before = text[max(0, start - 80) : start]
        if start == at or text[start:at] == b"git" or before.endswith(b"%") or _AUTHORITY.search(before):
            continue
        yield start, match.end(), EMAIL


def _url_passwords(text: bytes) -> Iterator[Span]:
    for match in _URL.finditer(text):
        if not _NO_PASSWORD.match(match[2]):
            yield match.start(2), match.end(2), SECRET


def _private_keys(text: bytes) -> Iterator[tuple[str, Span]]:
    """The base64 of each key, line by line; markers, quotes and line ends stay. Only the first has a kind."""
    for block in _KEY_BLOCK.finditer(text):
        if not _KEY_LINE.search(block[2]):
            continue
        kind = "private key"
        for match in _KEY_TEXT.finditer(text, block.start(2), block.end(2)):
            yield kind, (match.start(), match.end(), SECRET)
            kind = ""
