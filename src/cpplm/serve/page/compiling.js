// The compile button: complaints at their lines and in a list, and what the program printed. When the text changes
// afterwards, complaints go with their lines, and the summary says that it is of another text.
import { compile } from "./api.js";
import { made } from "./dom.js";

const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

/** How a run ended, in words. */
export function ending({ reason, exit_code, signal, seconds }) {
  const after = `after ${seconds.toFixed(2)} s`;
  if (reason === "exit") return `Ended with exit code ${exit_code} ${after}.`;
  if (reason === "signal") return `Ended by signal ${signal} ${after}.`;
  return `Stopped ${after}: ${reason === "timeout" ? "it took too long" : `too much of ${reason.replace(" limit", "")}`}.`;
}

export class Compiling {
  #editor;
  #settings;
  #say;
  #unsay;
  #parts;
  #problems = [];
  #compiled = "";
  #summary = "";
  #said = "";
  #current = -1;
  #running = false;

  /** `parts`: the elements list, summary, output, stdin, and the buttons. */
  constructor({ editor, settings, say, unsay, parts }) {
    [this.#editor, this.#settings, this.#say, this.#unsay, this.#parts] = [editor, settings, say, unsay, parts];
    editor.addEventListener("change", () => this.#follow());
  }

  /** Compile what is in the editor, and run it if asked to. */
  async start(run) {
    if (this.#running) return;
    this.#busy(true);
    this.#say(run ? "Compiling and running…" : "Compiling…");
    this.#parts.summary.textContent = this.#summary = "";
    this.#parts.output.replaceChildren();
    const lines = this.#editor.lines, source = this.#editor.value; // as sent: both may change while the compiler works
    try {
      const body = { source, run, stdin: run ? this.#parts.stdin.value : "" };
      this.#show(await compile({ body, key: this.#settings.key }), lines);
      this.#compiled = source;
      this.#follow();
    } catch (error) {
      this.#say(error.message, true);
    } finally {
      this.#busy(false);
    }
  }

  /** Go to the next complaint, or the one before. */
  step(by) {
    const number = this.#problems.length;
    if (!number) return;
    this.#current = this.#current < 0 && by < 0 ? number - 1 : (this.#current + by + number) % number;
    this.#go(this.#problems[this.#current]);
    this.#say(this.#problems[this.#current].message);
  }

  #busy(busy) {
    this.#running = busy;
    for (const button of this.#parts.buttons) button.setAttribute("aria-disabled", busy);
  }

  #show({ ok, diagnostics, output, run }, lines) {
    this.#problems = diagnostics.map((each) => ({ ...each, at: lines[each.line - 1], where: made("span") }));
    this.#current = -1;
    this.#editor.mark(this.#problems.filter(({ at, severity }) => at && severity !== "note").map((each) => [each.at, each]));
    this.#parts.list.replaceChildren(...this.#problems.map((each) => this.#item(each)));
    const number = (kind) => diagnostics.filter(({ severity }) => severity === kind).length;
    const found = [count(number("error"), "error"), count(number("warning"), "warning")];
    const text = ok && !number("warning") ? "Compiled without complaints." : `${ok ? "Compiled" : "Not compiled"}: ${found.join(", ")}.`;
    this.#summary = text;
    this.#parts.output.replaceChildren(...(run ? this.#printed(run) : []), ...(ok ? [] : this.#raw(output)));
    this.#said = run ? `${text} ${ending(run)}` : text;
    this.#say(this.#said);
  }

  // Say where the complaints stand now, and whether they are of the text as it is now.
  #follow() {
    if (!this.#summary) return;
    const stale = this.#editor.value !== this.#compiled;
    this.#parts.summary.textContent = stale ? `${this.#summary} The text has changed since.` : this.#summary;
    if (stale) this.#unsay(this.#said);
    for (const { at, line, column, where } of this.#problems) {
      const now = this.#editor.numberOf(at);
      if (line) where.textContent = now ? ` line ${now}${column ? `:${column}` : ""}` : ` was line ${line}`;
    }
  }

  #item(problem) {
    const { severity, message, where } = problem;
    const kind = made("b", { textContent: severity });
    const button = made("button", { type: "button", className: severity }, kind, where, " ", message);
    button.addEventListener("click", () => {
      this.#current = this.#problems.indexOf(problem);
      this.#go(problem);
    });
    return made("li", {}, button);
  }

  #go({ at, column }) {
    const line = this.#editor.numberOf(at);
    if (line) this.#editor.jump(line, column ?? 1);
  }

  #printed(run) {
    const shown = [made("p", { textContent: ending(run) })];
    for (const [name, text] of [["Standard output", run.stdout], ["Standard error", run.stderr]])
      if (text) shown.push(made("h3", { textContent: name }), made("pre", { textContent: text, tabIndex: 0 }));
    return shown;
  }

  #raw(output) {
    if (!output) return [];
    const summary = made("summary", { textContent: "All that the compiler said" });
    return [made("details", {}, summary, made("pre", { textContent: output, tabIndex: 0 }))];
  }
}
