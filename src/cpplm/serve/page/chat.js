// A conversation with the model. What it writes is shown as text; code between ``` in colors, with buttons. All that a base
// model writes is taken for code: it has learned nothing else.
import { chat, isCancel } from "./api.js";
import { highlighted } from "./cpp.js";
import { made } from "./dom.js";

/** A text as parts {code, text}: code is what stands between lines of ``` or ~~~, also where the second is missing. */
export function parts(text) {
  const found = [];
  let fence = "";
  const add = (code, line) => {
    if (found.at(-1)?.code !== code || found.at(-1).closed) found.push({ code, lines: [], closed: false });
    if (line !== null) found.at(-1).lines.push(line);
  };
  for (const line of text.split("\n")) {
    const [, mark] = line.match(/^ {0,3}(`{3,}|~{3,})/) ?? [];
    if (!fence && mark) {
      fence = mark;
      add(true, null);
    } else if (fence && mark?.startsWith(fence) && line.trim() === mark) {
      fence = "";
      found.at(-1).closed = true;
    } else {
      add(fence !== "", line);
    }
  }
  return found.map(({ code, lines }) => ({ code, text: lines.join("\n") })).filter((part) => part.code || part.text.trim());
}

/** Nodes of a paragraph; what stands between runs of as many backticks is code. */
function inline(text) {
  const runs = [...text.matchAll(/`+/g)], partner = [], later = new Map(); // of each run: the next one of its length
  for (let index = runs.length - 1; index >= 0; index--) {
    const { length } = runs[index][0];
    partner[index] = later.get(length);
    later.set(length, index);
  }
  const nodes = [];
  let at = 0;
  for (let index = 0; index < runs.length; index++) {
    const [open, close] = [runs[index], runs[partner[index]]];
    if (!close) continue;
    const code = text.slice(open.index + open[0].length, close.index);
    nodes.push(text.slice(at, open.index), made("code", { textContent: code }));
    at = close.index + close[0].length;
    index = partner[index];
  }
  return [...nodes, text.slice(at)];
}

const paragraphs = (text) => text.trim().split(/\n\s*\n/).map((each) => made("p", {}, ...inline(each)));

/** What the model called, with the result behind it: text, whatever it holds. */
const toolCall = ({ call, result }) =>
  made("details", { className: "call" }, made("summary", {}, made("code", { textContent: call })), made("pre", { textContent: result }));

const OUTGROWN = "The chat has outgrown the model's context: its beginning was left out.";

/** About how many tokens a message takes: they are longer than three bytes, and a few stand around it. */
const guess = (text) => Math.ceil(new TextEncoder().encode(text).length / 3) + 4;

/** The last turns that fit into so many tokens. */
export function lastTurns(turns, most) {
  let first = turns.length;
  while (first && turns[first - 1].tokens <= most) most -= turns[--first].tokens;
  return turns.slice(first);
}

/** `takeCode` is called with code that is wanted in the editor. */
export class Chat {
  #log;
  #form;
  #settings;
  #model;
  #say;
  #takeCode;
  #turns = []; // {messages: [question, answer], calls, tokens}; no number of tokens is enough for those that were dropped
  #control = null;

  constructor({ log, form, fresh, settings, model, say, takeCode }) {
    [this.#log, this.#form, this.#settings, this.#model] = [log, form, settings, model];
    [this.#say, this.#takeCode] = [say, takeCode];
    const { message } = form.elements;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#control) this.stop();
      else this.#send();
    });
    message.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") this.stop();
      if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (!this.#control) this.#send();
    });
    fresh.addEventListener("click", () => {
      this.stop();
      this.#turns = [];
      log.replaceChildren();
      say("");
      message.focus();
    });
  }

  /** End the answer that is being written; what there is of it stays. */
  stop() {
    this.#control?.abort();
  }

  async #send() {
    const field = this.#form.elements.message, content = field.value.trim();
    if (!content) return;
    const asked = { role: "user", content }, answer = { role: "assistant", content: "" };
    const turn = { messages: [asked, answer], calls: [], tokens: 0 };
    const turns = this.#turns, control = new AbortController();
    const shown = [this.#show("You", content), this.#show("Model", "")];
    field.value = "";
    this.#control = control;
    this.#busy(true);
    try {
      await this.#fitting(turn, turns, shown[1], control.signal);
    } catch (error) {
      if (!isCancel(error)) this.#say(error.message, true);
    }
    this.#control = null;
    this.#busy(false);
    if (answer.content) {
      turn.tokens ||= guess(content) + guess(answer.content); // it was stopped
      turns.push(turn);
      this.#fill(shown[1], answer.content, turn.calls);
    } else { // without an answer it was not said
      for (const element of shown) element.remove();
      field.value ||= content;
    }
  }

  // Ask with as many turns before it as leave room for the answer, which has half of the context at most.
  async #fitting(turn, turns, shown, signal) {
    const context = this.#model().max_model_len;
    const max_tokens = Math.max(1, Math.min(this.#settings.values.chatMaxTokens, Math.floor(context / 2)));
    const kept = lastTurns(turns, context - max_tokens - guess(turn.messages[0].content));
    for (;;) {
      try {
        await this.#stream(turn, kept, max_tokens, shown, signal, kept.length < turns.length ? OUTGROWN : "");
        for (const each of turns.slice(0, turns.length - kept.length)) each.tokens = Infinity;
        return;
      } catch (error) {
        if (error.code !== "context_length_exceeded") throw error;
        if (!kept.length) throw new Error(`This question alone is too long: ${error.message}.`);
        kept.shift(); // the guess was too low
      }
    }
  }

  async #stream(turn, kept, max_tokens, shown, signal, note) {
    const [question, answer] = turn.messages, messages = [...kept.flatMap((each) => each.messages), question];
    const { chatTemperature: temperature } = this.#settings.values;
    const body = { model: this.#model().id, messages, temperature, max_tokens, stream_options: { include_usage: true } };
    let frame = 0, cut = false;
    this.#say(note);
    try {
      for await (const { text, calls, reason, tokens } of chat({ body, key: this.#settings.key, signal })) {
        answer.content += text;
        turn.calls.push(...calls);
        if (tokens) turn.tokens = Math.max(1, kept.reduce((left, each) => left - each.tokens, tokens));
        cut ||= reason === "length";
        frame ||= requestAnimationFrame(() => {
          frame = 0;
          this.#fill(shown, answer.content, turn.calls);
        });
      }
    } finally {
      cancelAnimationFrame(frame);
    }
    const ending = cut ? "The answer was cut off: settings or context allow no more tokens." : "The answer is complete.";
    this.#say(`${answer.content.trim() ? ending : "The model has nothing to say."} ${note}`.trim());
  }

  #busy(busy) {
    this.#log.setAttribute("aria-busy", busy); // read out as a whole, not piece by piece
    this.#form.elements.send.textContent = busy ? "Stop" : "Send";
  }

  #show(who, content) {
    const body = made("div", { className: "body" });
    const element = made("article", { className: `message ${who.toLowerCase()}` }, made("h3", { textContent: who }), body);
    this.#log.append(element);
    this.#fill(element, content, [], true);
    return element;
  }

  // Follows the text unless somebody has scrolled up.
  #fill(element, content, calls, follow = false) {
    const log = this.#log, atEnd = follow || log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const writesCode = this.#model().stage === "base" && element.matches(".model");
    const found = parts(content).flatMap(({ code, text }) => (code || writesCode ? this.#code(text) : paragraphs(text)));
    element.querySelector(".body").replaceChildren(...calls.map(toolCall), ...found);
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  #code(text) {
    const take = made("button", { type: "button", textContent: "To editor" });
    take.addEventListener("click", () => this.#takeCode(text));
    const bar = made("div", { className: "bar" }, take);
    if (navigator.clipboard) {
      const copy = made("button", { type: "button", textContent: "Copy" });
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(text);
        this.#say("Copied.");
      });
      bar.prepend(copy);
    }
    return made("figure", { className: "code" }, made("pre", { tabIndex: 0 }, highlighted(text)), bar);
  }
}
