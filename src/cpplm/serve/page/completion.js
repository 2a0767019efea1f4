// Completion at the cursor: what the model writes there is shown as it comes, and belongs to the text only when taken.
import { complete, isCancel } from "./api.js";

const PAUSE = 600; // ms without a key
const LEAST = 200; // characters in front of the cursor, below which nothing more is left out

/**
 * What is still to come of a suggestion where the user has gone on typing it, or null where the text is another one.
 * `asked` holds the text in front of and behind the cursor as it was, what was written since, and whether that is all.
 */
export function remaining({ before, after, text, done }, value, cursor) {
  const typed = value.slice(before.length, cursor);
  if (before + typed + after !== value || cursor !== value.length - after.length) return null;
  if (text.startsWith(typed)) return text.slice(typed.length);
  return !done && typed.startsWith(text) ? "" : null;
}

/** The last whole lines of a text in so many characters, or its end where the last line is longer. */
export function lastLines(text, most) {
  if (text.length <= most) return text;
  const end = text.slice(-most);
  return end.slice(end.indexOf("\n") + 1);
}

/** The first whole lines of a text in so many characters, or its beginning where the first line is longer. */
export function firstLines(text, most) {
  if (text.length <= most) return text;
  const beginning = text.slice(0, most);
  return beginning.slice(0, beginning.lastIndexOf("\n") + 1 || most);
}

/** Offers what the model writes at the cursor of an editor. `onactive` is told when it begins and ends to write. */
export class Completion {
  #editor;
  #settings;
  #model;
  #say;
  #unsay;
  #onactive;
  #asked = null;
  #told = "";
  #timer = 0;
  #most = 16000;

  constructor({ editor, settings, model, say, unsay, onactive }) {
    [this.#editor, this.#settings, this.#model] = [editor, settings, model];
    [this.#say, this.#unsay, this.#onactive] = [say, unsay, onactive];
    editor.filter = (event) => this.#key(event);
    editor.addEventListener("move", () => {
      this.#show();
      if (this.#timer) this.#wait();
    });
    editor.addEventListener("change", () => {
      this.#show();
      if (settings.values.onPause && !this.#asked) this.#wait();
    });
  }

  get active() {
    return this.#asked !== null && !this.#asked.done;
  }

  /** Ask for a suggestion. */
  async ask() {
    this.dismiss();
    this.#editor.focus();
    this.#editor.collapse();
    const { value, cursor } = this.#editor, control = new AbortController();
    const asked = { before: value.slice(0, cursor), after: value.slice(cursor), text: "", done: false, control };
    this.#asked = asked;
    this.#onactive(true);
    try {
      await this.#stream(asked);
      if (this.#asked !== asked) return;
      asked.done = true;
      this.#show();
      this.#told = asked.text.trim() ? `Suggestion: ${asked.text}` : "The model suggests nothing here.";
      if (this.#asked === asked || !asked.text) this.#say(this.#told);
    } catch (error) {
      if (this.#asked !== asked) return;
      this.dismiss();
      if (!isCancel(error)) this.#say(error.message, true);
    } finally {
      if (this.#asked === asked || !this.active) this.#onactive(false);
    }
  }

  /** Forget the suggestion, and tell the server if it still writes. */
  dismiss() {
    this.#stopWaiting();
    const asked = this.#asked;
    this.#asked = null;
    asked?.control.abort();
    this.#unsay(this.#told);
    this.#editor.ghost("");
  }

  // Characters in front of the cursor that are sent at most, behind it a quarter of that: tokens are longer than three.
  get #room() {
    return Math.min(this.#most, 3 * this.#model().max_model_len);
  }

  // Where the text does not fit into the model's context, half of it is asked for, from then on.
  async #stream(asked) {
    for (;;) {
      try {
        const pieces = complete({ body: this.#body(asked), key: this.#settings.key, signal: asked.control.signal });
        for await (const { text } of pieces) {
          asked.text += text;
          if (this.#asked === asked) this.#show();
        }
        return;
      } catch (error) {
        const shorter = Math.min(this.#room, asked.before.length + 4 * asked.after.length) / 2;
        if (error.code !== "context_length_exceeded" || shorter < LEAST) throw error;
        this.#most = shorter;
      }
    }
  }

  #body({ before, after }) {
    const { temperature, maxTokens } = this.#settings.values, { id, supports_fim } = this.#model();
    const body = { model: id, prompt: lastLines(before, this.#room), temperature, max_tokens: maxTokens };
    return supports_fim && after.trim() ? { ...body, suffix: firstLines(after, this.#room / 4) } : body;
  }

  #show() {
    const asked = this.#asked;
    if (!asked) return;
    const rest = this.#editor.selected ? null : remaining(asked, this.#editor.value, this.#editor.cursor);
    if (rest === null || (asked.done && rest === "")) this.dismiss();
    else this.#editor.ghost(rest);
  }

  // Ask when nothing has been done for a while.
  #wait() {
    this.#stopWaiting();
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      if (!this.#asked && !this.#editor.selected && this.#editor.focused) this.ask();
    }, PAUSE);
  }

  #stopWaiting() {
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  // What can be taken now.
  #offer() {
    return (this.#asked && remaining(this.#asked, this.#editor.value, this.#editor.cursor)) || "";
  }

  #key(event) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    if (event.key === " " && event.ctrlKey) {
      this.ask();
    } else if (event.key === "Tab" && plain && this.#offer()) {
      this.#editor.insert(this.#offer());
    } else if (event.key === "ArrowRight" && (event.ctrlKey || event.altKey) && this.#offer()) {
      this.#editor.insert(this.#offer().match(/^\s*(?:\w+|\S)?/)[0]);
    } else if (event.key === "Escape" && this.#asked) {
      this.dismiss();
    } else {
      return false;
    }
    event.preventDefault();
    return true;
  }
}
