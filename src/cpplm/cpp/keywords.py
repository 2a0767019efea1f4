"""Keywords of C++20 and GNU C, with the identifiers of special meaning that code rarely uses otherwise."""

from __future__ import annotations

_KEYWORDS = (
    "alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept "
    "const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false final float for "
    "friend goto if inline int long mutable namespace new noexcept nullptr operator override private "
    "protected public register reinterpret_cast requires restrict return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef typeid "
    "typename union unsigned using virtual void volatile wchar_t while"
)
KEYWORDS = frozenset(_KEYWORDS.split())
KEYWORD_BYTES = frozenset(_KEYWORDS.encode().split())
# Of the compiler, whatever a project makes of them for others (GCC's manual, "Alternate Keywords").
GNU_KEYWORDS = frozenset(
    b"__alignof__ __asm __asm__ __attribute __attribute__ __const __const__ __extension__ "
    b"__inline __inline__ __restrict __restrict__ __signed__ __thread __typeof __typeof__ __volatile "
    b"__volatile__".split()
)
