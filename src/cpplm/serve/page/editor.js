// A C++ editor: a transparent <textarea>, which knows all about typing, over the same text in colors. Each line is a row
// of its own, with its number, so that an edit paints only what it changed and marks stay with their lines. Lines that an
// edit changes without making them more or fewer stay the lines they were.
import { highlightLine, nodesOf } from "./cpp.js";
import { made } from "./dom.js";

const INDENT = "    ";

const lineStart = (text, at) => text.slice(0, at).lastIndexOf("\n") + 1;

// `pieces` up to a column, and behind it.
function cut(pieces, column) {
  const before = [], after = [];
  let at = 0;
  for (const [kind, text] of pieces) {
    const left = Math.max(0, Math.min(column - at, text.length));
    if (left) before.push([kind, text.slice(0, left)]);
    if (left < text.length) after.push([kind, text.slice(left)]);
    at += text.length;
  }
  return [before, after];
}

/** Events: "change" when the text has changed, "move" when the cursor may have moved. */
export class Editor extends EventTarget {
  #source;
  #layer;
  #gutter;
  #scroller;
  #lines = [];
  #ghost = null;
  #mayLeave = false;
  /** Takes a key before the editor does; true if that was all. */
  filter = () => false;

  constructor({ source, layer, gutter, scroller, say }) {
    super();
    [this.#source, this.#layer, this.#gutter, this.#scroller] = [source, layer, gutter, scroller];
    source.addEventListener("input", () => {
      this.#update();
      this.dispatchEvent(new Event("change"));
    });
    document.addEventListener("selectionchange", () => {
      if (this.focused) this.dispatchEvent(new Event("move"));
    });
    source.addEventListener("keydown", (event) => {
      if (!event.isComposing && !this.filter(event)) this.#key(event, say);
    });
    gutter.addEventListener("click", ({ target }) => {
      const line = this.#lines.findIndex(({ number }) => number === target);
      if (line >= 0) this.jump(line + 1);
    });
    this.#update();
  }

  get value() {
    return this.#source.value;
  }

  /** Begin a new text, with the cursor at this offset; cannot be undone. */
  reset(text, at = 0) {
    this.#source.value = text;
    this.#source.setSelectionRange(at, at);
    this.#update();
  }

  /** Where the cursor is, or the end of what is selected. */
  get cursor() {
    return this.#source.selectionEnd;
  }

  get selected() {
    return this.#source.selectionStart !== this.#source.selectionEnd;
  }

  get focused() {
    return document.activeElement === this.#source;
  }

  focus() {
    this.#source.focus({ preventScroll: true });
  }

  /** Put the cursor behind what is selected. */
  collapse() {
    this.#source.setSelectionRange(this.cursor, this.cursor);
  }

  /** Put text in the place of what is selected, as typing would: it can be undone. */
  insert(text) {
    this.focus();
    // Deprecated, and still the one way that keeps the history of a <textarea>.
    const typed = text ? document.execCommand("insertText", false, text) : document.execCommand("delete");
    if (!typed) {
      this.#source.setRangeText(text, this.#source.selectionStart, this.#source.selectionEnd, "end");
      this.#source.dispatchEvent(new InputEvent("input"));
    }
    this.#reveal();
  }

  /** Show text at the cursor that is not part of the text; "" takes it away. */
  ghost(text) {
    const [place, column] = text ? this.#place(this.cursor) : [-1, 0];
    const line = this.#lines[place];
    const old = this.#ghost;
    if (old && (old.line !== line || old.column !== column || !old.span.isConnected)) {
      old.line.number.style.removeProperty("--rows");
      if (old.span.isConnected) old.line.row.replaceChildren(nodesOf(old.line.pieces));
      this.#ghost = null;
    }
    if (!line) return;
    if (!this.#ghost) {
      const [before, after] = cut(line.pieces, column), span = made("span", { className: "ghost" });
      line.row.replaceChildren(nodesOf(before), span, nodesOf(after));
      this.#ghost = { line, column, span };
    }
    this.#ghost.span.textContent = text;
    line.number.style.setProperty("--rows", text.split("\n").length);
  }

  /** The lines as they are now, for `mark` and `numberOf` later. */
  get lines() {
    return this.#lines;
  }

  /** Where a line is now, from 1; 0 when it is gone. */
  numberOf(line) {
    return this.#lines.indexOf(line) + 1;
  }

  /** Mark lines, given as pairs with their complaints; those that were marked before no longer are. */
  mark(complaints) {
    for (const line of this.#lines) this.#setMark(line, null);
    for (const [line, { severity, message }] of complaints) {
      const worse = line.mark?.severity === "error" ? "error" : severity;
      this.#setMark(line, { severity: worse, message: line.mark ? `${line.mark.message}\n${message}` : message });
    }
  }

  /** Put the cursor at a place, both counted from 1. */
  jump(line, column = 1) {
    const place = Math.max(0, Math.min(line, this.#lines.length) - 1);
    let at = 0;
    for (let before = 0; before < place; before++) at += this.#lines[before].text.length + 1;
    at += Math.min(column - 1, this.#lines[place].text.length);
    this.focus();
    this.#source.setSelectionRange(at, at);
    this.#reveal();
  }

  // ---- painting -------------------------------------------------------------------------------------------

  // Replace the rows between what begins and what ends as before.
  #update() {
    const texts = this.#source.value.split("\n"), old = this.#lines;
    const most = Math.min(texts.length, old.length);
    let head = 0, tail = 0;
    while (head < most && texts[head] === old[head].text) head++;
    while (tail < most - head && texts.at(-1 - tail) === old.at(-1 - tail).text) tail++;
    const gone = old.slice(head, old.length - tail);
    const changed = texts.slice(head, texts.length - tail);
    if (gone.length === changed.length) {
      gone.forEach((line, place) => (line.text = changed[place]));
      this.#paint(head, head + gone.length);
      return;
    }
    const fresh = changed.map((text) => {
      return { text, row: made("div", { className: "row" }), number: made("div", { className: "number" }) };
    });
    this.#lines = [...old.slice(0, head), ...fresh, ...old.slice(old.length - tail)];
    const rows = document.createDocumentFragment(), numbers = document.createDocumentFragment();
    for (const line of fresh) {
      rows.append(line.row);
      numbers.append(line.number);
    }
    const next = old[old.length - tail];
    this.#layer.insertBefore(rows, next?.row ?? null);
    this.#gutter.insertBefore(numbers, next?.number ?? null);
    for (const line of gone) {
      line.row.remove();
      line.number.remove();
    }
    this.#paint(head, head + fresh.length);
  }

  // Paint new lines, and those behind them that begin inside or outside of a comment otherwise than before.
  #paint(from, to) {
    let state = from ? this.#lines[from - 1].after : "";
    for (let place = from; place < this.#lines.length; place++) {
      const line = this.#lines[place];
      if (place >= to && line.before === state) return;
      const { pieces, state: after } = highlightLine(line.text, state);
      Object.assign(line, { before: state, after, pieces });
      line.row.replaceChildren(nodesOf(pieces));
      state = after;
    }
  }

  #setMark(line, mark) {
    line.mark = mark;
    for (const element of [line.row, line.number]) {
      element.classList.remove("error", "warning", "note");
      if (mark) element.classList.add(mark.severity);
    }
    line.number.title = mark?.message ?? "";
  }

  // ---- places ---------------------------------------------------------------------------------------------

  // Line, from 0, and column of an offset.
  #place(at) {
    const text = this.#source.value, start = lineStart(text, at);
    let line = 0;
    for (let end = text.indexOf("\n"); end >= 0 && end < at; end = text.indexOf("\n", end + 1)) line++;
    return [line, at - start];
  }

  // Scroll to the cursor: browsers do so when somebody types, but not when a script moves it.
  #reveal() {
    const [place, column] = this.#place(this.cursor), { row } = this.#lines[place];
    const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT), range = document.createRange();
    let left = column, node;
    while ((node = walker.nextNode()) && left > node.length) left -= node.length;
    if (node) range.setStart(node, left);
    const box = (node ? range : row).getBoundingClientRect();
    this.#scroller.scrollIntoView({ block: "nearest" });
    const view = this.#scroller.getBoundingClientRect(), margin = 40, inner = view.left + this.#gutter.offsetWidth;
    if (box.top < view.top + margin) this.#scroller.scrollTop -= view.top + margin - box.top;
    else if (box.bottom > view.bottom - margin) this.#scroller.scrollTop += box.bottom - view.bottom + margin;
    if (box.left < inner + margin) this.#scroller.scrollLeft -= inner + margin - box.left;
    else if (box.left > view.right - margin) this.#scroller.scrollLeft += box.left - view.right + margin;
  }

  // ---- keys -----------------------------------------------------------------------------------------------

  #key(event, say) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "Shift") return;
    const leaves = this.#mayLeave;
    this.#mayLeave = event.key === "Escape";
    if (this.#mayLeave) {
      say("Tab leaves the editor now.");
    } else if (event.key === "Tab" && plain && !leaves) {
      event.preventDefault();
      if (event.shiftKey || this.selected) this.#shift(event.shiftKey);
      else this.insert(" ".repeat(INDENT.length - (this.#place(this.cursor)[1] % INDENT.length)));
    } else if (event.key === "Enter" && plain && !event.shiftKey) {
      event.preventDefault();
      const before = this.#before();
      this.insert(`\n${before.match(/^[ \t]*/)[0]}${/[{(]\s*$/.test(before) ? INDENT : ""}`);
    } else if (event.key === "}" && !this.selected && /^(?: {4})+$/.test(this.#before())) {
      event.preventDefault();
      this.#source.setSelectionRange(this.cursor - INDENT.length, this.cursor);
      this.insert("}");
    }
  }

  // The line up to where the selection begins.
  #before() {
    const { value, selectionStart } = this.#source;
    return value.slice(lineStart(value, selectionStart), selectionStart);
  }

  // Move the selected lines by one step.
  #shift(outwards) {
    const { value, selectionStart, selectionEnd } = this.#source, whole = this.selected;
    const start = lineStart(value, selectionStart), block = value.slice(start, selectionEnd);
    const moved = outwards ? block.replace(/^(?: {1,4}|\t)/gm, "") : block.replace(/^(?=[^\n])/gm, INDENT);
    if (moved === block) return;
    this.#source.setSelectionRange(start, selectionEnd);
    this.insert(moved);
    if (whole) this.#source.setSelectionRange(start, start + moved.length);
  }
}
