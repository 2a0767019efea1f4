// What the user chose: kept by the browser, the API key only as long as the tab is open.

const DEFAULTS = { temperature: 0.2, maxTokens: 64, onPause: false, chatTemperature: 0.7, chatMaxTokens: 512 };

/** A value that was kept, or null; `kind` is "local" or "session". */
export function kept(kind, name) {
  try {
    return window[`${kind}Storage`].getItem(`cpplm.${name}`);
  } catch {
    return null; // the browser keeps nothing
  }
}

/** Keep a value; an empty one is forgotten. */
export function keep(kind, name, value) {
  try {
    const storage = window[`${kind}Storage`];
    if (value) storage.setItem(`cpplm.${name}`, value);
    else storage.removeItem(`cpplm.${name}`);
  } catch {
    // The browser keeps nothing, or has no room.
  }
}

/** The fields of a form in a dialog, taken when it is closed. `onkey` is called when the API key was changed. */
export class Settings {
  values = { ...DEFAULTS };
  key = kept("session", "key") ?? "";
  #fields;

  constructor(dialog, form, onkey) {
    this.#fields = form.elements;
    try {
      const known = JSON.parse(kept("local", "settings") ?? "{}");
      for (const [name, value] of Object.entries(DEFAULTS))
        if (typeof known?.[name] === typeof value) this.values[name] = known[name];
    } catch {
      // Not ours: the defaults.
    }
    this.#fill();
    this.#fields.key.value = this.key;
    dialog.addEventListener("close", () => {
      this.#take();
      this.#fill(); // what was not valid
      keep("local", "settings", JSON.stringify(this.values));
      const key = this.#fields.key.value.trim();
      if (key === this.key) return;
      this.key = key;
      keep("session", "key", key);
      onkey();
    });
  }

  #fill() {
    for (const [name, value] of Object.entries(this.values)) {
      const field = this.#fields[name];
      if (field.type === "checkbox") field.checked = value;
      else field.value = value;
    }
  }

  #take() {
    for (const name of Object.keys(this.values)) {
      const field = this.#fields[name];
      if (field.checkValidity()) this.values[name] = field.type === "checkbox" ? field.checked : field.valueAsNumber;
    }
  }
}
