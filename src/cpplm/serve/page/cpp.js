// Colors of C++, line by line. Linear in the text, whatever that is: it comes from models.
import { made } from "./dom.js";

// As in cpplm.corpus.standard_names; a test compares the two.
export const KEYWORDS = new Set(`
  alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept const consteval constexpr
  constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum
  explicit export extern false final float for friend goto if inline int long mutable namespace new noexcept nullptr
  operator override private protected public register reinterpret_cast requires restrict return short signed sizeof
  static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union
  unsigned using virtual void volatile wchar_t while
`.trim().split(/\s+/));

const TOKEN = new RegExp([
  String.raw`(?<comment>//.*)`,
  String.raw`(?<open>/\*|(?:u8|[uUL])?R"(?<delimiter>[^()\\\s"]{0,16})\()`,
  String.raw`(?<string>(?:u8|[uUL])?(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|'(?:[^'\\]|\\.)*(?:'|\\?$))|<(?<=^\s*#\s*include\s*<)[^>]*>)`,
  String.raw`(?<directive>^\s*#\s*\w*)`,
  String.raw`(?<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)`,
  String.raw`(?<keyword>[A-Za-z_]\w*)`,
].join("|"), "gs");
const KINDS = ["comment", "string", "directive", "number", "keyword"];

/**
 * One line in pieces, each with its kind ("" for none), and the state in which the next line begins.
 * The state is the text that has to come to end a comment or a raw string, "" outside of both.
 */
export function highlightLine(line, state) {
  const pieces = [];
  let at = 0;
  const put = (kind, end) => {
    if (end > at) pieces.push([kind, line.slice(at, end)]);
    at = end;
  };
  // All up to the end of a comment or raw string, looked for from `from` on; false if that is not on this line.
  const close = (end, from) => {
    const found = line.indexOf(end, from);
    put(end === "*/" ? "comment" : "string", found < 0 ? line.length : found + end.length);
    return found >= 0;
  };
  if (state && !close(state, 0)) return { pieces, state };
  TOKEN.lastIndex = at;
  for (let match; (match = TOKEN.exec(line)); ) {
    const { open, delimiter, keyword } = match.groups;
    const end = match.index + match[0].length;
    if (keyword !== undefined && !KEYWORDS.has(keyword)) continue;
    put("", match.index);
    if (open !== undefined) {
      const closing = open === "/*" ? "*/" : `)${delimiter}"`;
      if (!close(closing, end)) return { pieces, state: closing };
      TOKEN.lastIndex = at;
    } else {
      put(KINDS.find((kind) => match.groups[kind] !== undefined), end);
    }
  }
  put("", line.length);
  return { pieces, state: "" };
}

/** Nodes that show pieces. */
export function nodesOf(pieces) {
  const nodes = document.createDocumentFragment();
  for (const [kind, text] of pieces) {
    nodes.append(kind ? made("span", { className: kind, textContent: text }) : text);
  }
  return nodes;
}

/** Nodes that show a text of several lines. */
export function highlighted(text) {
  const nodes = document.createDocumentFragment();
  let state = "";
  text.split("\n").forEach((line, number) => {
    const result = highlightLine(line, state);
    if (number) nodes.append("\n");
    nodes.append(nodesOf(result.pieces));
    state = result.state;
  });
  return nodes;
}
