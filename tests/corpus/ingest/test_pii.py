import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.corpus.ingest.pii import redact
from tests.corpus.cpp import needs_gxx

# Joined at run time, so that scanners of this repository find no token in it.
SECRETS = {
    "AWS key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "GitHub token": "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8",
    "GitLab token": "glpat-" + "a1B2c3D4e5F6g7H8i9J0",
    "Slack token": "xoxb-" + "123456789012-" + "AbCdEfGhIjKlMnOp",
    "Slack webhook": "hooks.slack.com/services/" + "T12345678/B12345678/" + "abcdefghijklmnopqrstuvwx",
    "Google key": "AIza" + "SyA1234567890" * 2 + "abcdefghi",
    "Google client secret": "GOCSPX-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4",
    "Stripe key": "sk_live_" + "a1B2c3D4" * 3,
    "OpenAI key": "sk-" + "a1B2c3D4e5" * 2 + "T3BlbkFJ" + "a1B2c3D4e5" * 2,
    "Anthropic key": "sk-ant-" + "api03-" + "a1B2c3D4" * 4,
    "Hugging Face token": "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "npm token": "npm_" + "a1B2c3D4e5F6" * 3,
    "PyPI token": "pypi-AgE" + "IcHlwaS5vcmc" * 5,
    "SendGrid key": "SG." + "a1B2c3D4e5F6g7H8i9J0kL." + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0uVw",
    "JSON web token": "eyJ"
    + "hbGciOiJIUzI1NiJ9."
    + "eyJ"
    + "zdWIiOiIxMjM0NTY3ODkwIn0."
    + "abcdefghijklmnopqrst",
    "Azure storage key": "AccountKey=" + "a1B2c3D4e5" * 8 + "f6G7h8==",
}
KEY_LINE = "MIIEpAIBAAKCAQEA" + "0123456789abcdefABCDEF+/" * 2
BEGIN, END = "-----BEGIN RSA PRIVATE " + "KEY-----", "-----END RSA PRIVATE " + "KEY-----"
KEY = f'const char* key =\n  "{BEGIN}\\n"\n  "{KEY_LINE}\\n{KEY_LINE}\\n"\n  "{KEY_LINE}\\n"\n  "{END}\\n";\n'


def kinds(text: str) -> list[str]:
    return [finding.kind for finding in redact(text.encode())[1]]


@pytest.mark.parametrize("kind", SECRETS)
def test_tokens_go_and_the_rest_stays(kind):
    text = f'int a;\nauto t = "{SECRETS[kind]}";  // why\n'.encode()
    cleaned, (finding,) = redact(text)
    assert cleaned == b'int a;\nauto t = "REDACTED";  // why\n'
    assert (finding.kind, finding.line) == (kind, 2)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_longer_word_or_a_cut_one_is_no_token(kind):
    assert kinds(f"int a{SECRETS[kind]};\n") == []
    assert kinds(f"{SECRETS[kind][:-12]}\n") == []


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("// Written by Ann <ann.lee@corp.co.uk>", "// Written by Ann <email@example.com>"),
        ("// (a+b@x-y.de), c@d.io.", "// (email@example.com), email@example.com."),
        (r'"\nann@corp.com"', r'"\nemail@example.com"'),
        (r'"C:\\nann@corp.com"', r'"C:\\email@example.com"'),
        ("mailto:ann@corp.com", "mailto:email@example.com"),
        ('"http://ann:S3cr3t!x@corp.com/"', '"http://ann:REDACTED@corp.com/"'),
        ('"postgres://:S3cr3t@[::1]:5432"', '"postgres://:REDACTED@[::1]:5432"'),
    ],
)
def test_addresses_and_passwords_are_replaced(text, cleaned):
    assert redact(text.encode())[0].decode() == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "/// @param a  @return b@c\n @interface Foo @end",
        'asm(".symver memcpy,memcpy@GLIBC_2.2.5"); asm("call f@plt"); asm("mov x@GOTPCREL(%rip), %rax");',
        "user@example.com ann@host.example.org a@b.test root@localhost",
        "git@github.com:owner/name.git ssh://git@host.org/ ssh://ann@host.org:22/x",
        'printf("%s@corp.com", name);',
        '"http://user:password@host/" "http://u:%s@h" "http://u:${PW}@h" "http://u:<pw>@h" "http://a.b/c:d@e"',
        "x@y.1 a@b @foo.com",
        f'#define B "{BEGIN}"\n#define E "{END}"\n',
        f'auto b = find("{BEGIN}"); AVeryLongNameOfSomethingElseThatGoesOnAndOn0 = 1; e = find("{END}");\n',
        "xox-men, hf_transform(), npm_install, SG.x, eyJ, AKIA, sk_live_x, AIza",
    ],
)
def test_what_only_looks_like_it_stays(text):
    same, findings = redact(text.encode())
    assert (same.decode(), findings) == (text, [])


def test_a_private_key_keeps_its_shape():
    cleaned, findings = redact(KEY.encode())
    assert cleaned.decode() == KEY.replace(KEY_LINE, "REDACTED")
    assert [(finding.kind, finding.line) for finding in findings] == [("private key", 3)]
    raw = KEY.replace("\\n", "\n").replace('"', "").encode()
    assert redact(raw)[0] == raw.replace(KEY_LINE.encode(), b"REDACTED")


def test_several_in_one_text_are_reported_in_order_with_lines():
    text = f"// a@b.org\n\n{SECRETS['AWS key']} c@d.org\n"
    _, findings = redact(text.encode())
    assert [(f.kind, f.line) for f in findings] == [
        ("e-mail address", 1), ("AWS key", 3), ("e-mail address", 3),
    ]  # fmt: skip
    assert not any(SECRETS["AWS key"] in repr(f) for f in findings)


@needs_gxx
def test_code_still_compiles(tmp_path):
    strings = ", ".join(f'"{secret}"' for secret in SECRETS.values())
    code = f'{KEY}const char* all[] = {{{strings}, "\\x41ann@corp.com", R"(ann@corp.com)"}}; // a@b.org\n'
    cleaned, findings = redact(code.encode())
    assert len(findings) == len(SECRETS) + 4
    (tmp_path / "a.cc").write_bytes(cleaned)
    subprocess.run([shutil.which("g++"), "-std=c++17", "-fsyntax-only", tmp_path / "a.cc"], check=True)


FRAGMENTS = st.sampled_from(
    [*SECRETS.values(), KEY, KEY_LINE, BEGIN, END, "ann@corp.com", "http://ann:", "S3cr3t@h.org", "@", "://",
     ":", "\\", "\\n", '"', "\n", " ", ".", "-", "a", "email@example.com", "REDACTED", "%"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=4)), max_size=12).map("".join)


@given(TEXTS)
def test_redaction_is_idempotent_and_keeps_lines_and_quotes(text):
    before = text.encode()
    after, findings = redact(before)
    again, more = redact(after)
    assert (again, more) == (after, [])
    assert [after.count(c) for c in (b"\n", b'"', b"\\")] == [before.count(c) for c in (b"\n", b'"', b"\\")]
    assert bool(findings) == (after != before)


@given(st.text(st.characters(codec="utf-8", exclude_characters="@")))
def test_text_without_anything_of_the_kind_is_the_same_object(text):
    data = text.encode()
    assert redact(data)[0] is data
