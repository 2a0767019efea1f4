// Puts the page together: what each button and key does.
import { servedModel } from "./api.js";
import { Chat } from "./chat.js";
import { Compiling } from "./compiling.js";
import { Completion } from "./completion.js";
import { Editor } from "./editor.js";
import { Settings, keep, kept } from "./settings.js";

const element = (id) => document.getElementById(id);
const LOOKS = ["system", "light", "dark"];
// A program that runs, in front of the cursor and behind it.
const EXAMPLE = [String.raw`#include <iostream>
#include <vector>

int sum(const std::vector<int>& values) {
    int total = 0;
    for (int value : values)
        total += value;
    return total;
}

int main() {
    std::cout << sum({1, 2, 3}) << '\n';
    `, "\n}\n"];

// ---- what is said to the user -------------------------------------------------------------------------------

function say(text, wrong = false) {
  element("status").textContent = wrong ? "" : text;
  element("alert").textContent = wrong ? text : "";
}

/** Take back what was said, unless something else was said since. */
function unsay(text) {
  if (element("status").textContent === text) element("status").textContent = "";
}

// ---- the model ----------------------------------------------------------------------------------------------

let model = { id: "", max_model_len: Infinity, supports_fim: true, stage: "" };
async function lookUpModel() {
  try {
    model = await servedModel({ key: settings.key });
    element("model").textContent = model.supports_fim ? model.id : `${model.id} (does not fill in: completes what is before the cursor)`;
    element("stage").textContent = `${model.stage} model`;
    element("base").hidden = model.stage !== "base";
    say("");
  } catch (error) {
    say(error.status === 401 ? "The server wants an API key: see Settings." : error.message, true);
  }
}

// ---- the look -----------------------------------------------------------------------------------------------

function setLook(look) {
  if (look === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = look;
  element("theme").textContent = `Look: ${look}`;
}

setLook(kept("local", "theme") ?? "system");
element("theme").addEventListener("click", () => {
  const look = LOOKS[(LOOKS.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % LOOKS.length];
  setLook(look);
  keep("local", "theme", look === "system" ? "" : look);
});

// ---- settings -----------------------------------------------------------------------------------------------

const settings = new Settings(element("settings"), element("settings-form"), lookUpModel);
element("open-settings").addEventListener("click", () => element("settings").showModal());
element("settings-form").addEventListener("submit", (event) => {
  event.preventDefault();
  element("settings").close();
});

// ---- the editor ---------------------------------------------------------------------------------------------

const editor = new Editor({
  source: element("source"), layer: element("layer"), gutter: element("gutter"), scroller: element("scroller"), say,
});
const begun = kept("local", "source");
editor.reset(begun ?? EXAMPLE.join(""), begun === null ? EXAMPLE[0].length : 0);
let saving = 0;
editor.addEventListener("change", () => {
  clearTimeout(saving);
  saving = setTimeout(() => keep("local", "source", editor.value), 300);
});
window.addEventListener("pagehide", () => saving && keep("local", "source", editor.value));

const completion = new Completion({
  editor, settings, say, unsay, model: () => model,
  onactive: (active) => {
    element("complete").textContent = active ? "Stop" : "Complete";
    element("scroller").classList.toggle("busy", active);
    if (active) say("Completing…");
    else unsay("Completing…");
  },
});
element("complete").addEventListener("click", () => {
  if (completion.active) completion.dismiss();
  else completion.ask();
});

const compiling = new Compiling({
  editor, settings, say, unsay,
  parts: {
    list: element("problems"), summary: element("summary"), output: element("output"), stdin: element("stdin"),
    buttons: [element("compile"), element("run")],
  },
});
element("compile").addEventListener("click", () => compiling.start(false));
element("run").addEventListener("click", () => compiling.start(true));

// ---- the chat -----------------------------------------------------------------------------------------------

new Chat({
  log: element("log"), form: element("chat-form"), fresh: element("new-chat"), settings, say, model: () => model,
  takeCode: (code) => {
    show("editor");
    completion.dismiss();
    editor.insert(code);
  },
});

// ---- the two parts, of which a narrow window shows one --------------------------------------------------------

function show(view) {
  document.querySelector("main").dataset.view = view;
  for (const button of document.querySelectorAll("#views button"))
    button.setAttribute("aria-pressed", button.dataset.view === view);
}

function go(view) {
  show(view);
  element(view === "chat" ? "message" : "source").focus();
}

for (const button of document.querySelectorAll("#views button")) button.addEventListener("click", () => go(button.dataset.view));

document.addEventListener("keydown", (event) => {
  if (event.isComposing || element("settings").open) return;
  const control = event.ctrlKey || event.metaKey;
  if (control && event.key === "Enter") compiling.start(event.shiftKey);
  else if (event.key === "F8") compiling.step(event.shiftKey ? -1 : 1);
  else if (event.altKey && !control && event.code === "Digit1") go("chat");
  else if (event.altKey && !control && event.code === "Digit2") go("editor");
  else return;
  event.preventDefault();
});

lookUpModel();
